"""Every provider: accepted, duplicate, forged and misdirected deliveries, and the rows that they leave."""

from pathlib import Path

import pytest

from oncehook.model.delivery import Delivery
from oncehook.receiver.verification import VerificationThread
from tests.support.providers import PUBLIC_URL, SENDERS, Sender, changed, sender
from tests.support.receiver import serving_source

pytestmark = pytest.mark.anyio


every_sender = pytest.mark.parametrize("sender", SENDERS, ids=str)


@pytest.mark.sampled(16)
@every_sender
async def test_the_first_delivery_of_every_provider_is_accepted_and_the_second_is_a_duplicate(
    sender: Sender, tmp_path: Path
) -> None:
    delivery = sender.compose()
    events = len(sender.source().read(delivery, sender.source().parse(delivery)))
    answer = sender.provider.answer
    async with serving_source(tmp_path, sender) as client:
        first, second = await client.send(delivery), await client.send(delivery)
        each_counts = sender.provider.event.id == "new:delivery"
        assert first.status_code == (answer.status or 202)
        assert second.status_code == (answer.status or (202 if each_counts else 200))
        if answer.body is not None:
            assert first.text == second.text == answer.body
        assert await client.receipts() == (2 * events if each_counts else events)


@pytest.mark.parametrize("name", ["mailjet", "cloudevents"])
async def test_a_single_event_of_a_batch_provider_is_answered_as_one_event(name: str, tmp_path: Path) -> None:
    batch_sender = sender(name)
    delivery = batch_sender.compose()
    if name == "mailjet":
        delivery = changed(delivery, body=b'{"event":"open","time":1800000000,"MessageID":1,"email":"a@example.com"}')
    async with serving_source(tmp_path, batch_sender) as client:
        answer = (await client.send(delivery)).json()
        assert answer["status"] == "accepted" and answer["receipt"] and answer["event_id"]


@pytest.mark.sampled(16)
@every_sender
async def test_a_forged_delivery_is_rejected_with_401_and_leaves_no_receipt(sender: Sender, tmp_path: Path) -> None:
    forged = sender.compose(number=1)
    async with serving_source(tmp_path, sender) as client:
        assert (await client.send(forged)).status_code == 401
        unsigned = changed(forged, {b"content-type": forged.headers[b"content-type"]}, body=b'{"id":"1","type":"t"}')
        assert (await client.send(unsigned)).status_code == 401
        assert await client.receipts() == 0


@pytest.mark.parametrize("name", ["stripe", "github", "slack", "twilio", "discord", "postmark", "adyen", "ses"])
async def test_only_the_verifier_stands_between_a_forged_delivery_and_the_database(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier that accepts everything must make the tests above fail: nothing else rejects their deliveries."""
    forger = sender(name)
    async with serving_source(tmp_path, forger) as client:
        assert (await client.send(forger.compose(number=1))).status_code == 401
        verifier = client.inbox._runtime.sources["here"].verifier
        monkeypatch.setattr(type(verifier), "verify", lambda self, delivery, now: 0)
        monkeypatch.setattr(VerificationThread, "fetch_keys", fetch_nothing)
        assert (await client.send(forger.compose(number=1))).is_success
        assert await client.receipts() > 0


async def fetch_nothing(*args: object) -> None:
    pass


@pytest.mark.sampled(12)
@every_sender
async def test_another_method_is_rejected_with_405_and_leaves_no_receipt(sender: Sender, tmp_path: Path) -> None:
    async with serving_source(tmp_path, sender) as client:
        for method in {"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} - {h.method for h in sender.provider.handshakes}:
            answer = await client.send(sender.compose(), method=method)
            assert answer.status_code == 405 and "POST" in answer.headers["allow"]
        for handshake in sender.provider.handshakes:
            if handshake.method == "GET":  # it lacks the fields of a handshake
                assert (await client.send(Delivery(b""), method="GET")).status_code == 405
        assert await client.receipts() == 0


@pytest.mark.sampled(16)
@every_sender
async def test_proxy_headers_of_a_sender_do_not_change_the_signed_address(sender: Sender, tmp_path: Path) -> None:
    """The signed address is the configured one, whatever the headers of a sender claim."""
    delivery = sender.compose()
    claimed = {
        b"x-forwarded-host": b"evil.example",
        b"x-forwarded-proto": b"http",
        b"forwarded": b"host=evil.example;proto=http",
        b"x-original-url": b"/other",
        b"host": b"evil.example",
    }
    async with serving_source(tmp_path, sender) as client:
        answer = await client.send(changed(delivery, {**delivery.headers, **claimed}))
        assert answer.status_code in (sender.provider.answer.status or 202, 202)


SIGNING_THE_ADDRESS = [sender for sender in SENDERS if "public_url" in sender.provider.options]


@pytest.mark.parametrize("sender", SIGNING_THE_ADDRESS, ids=str)
async def test_a_delivery_signed_for_another_address_or_query_is_rejected(sender: Sender, tmp_path: Path) -> None:
    async with serving_source(tmp_path, sender, public_url=PUBLIC_URL + "x") as client:
        assert (await client.send(sender.compose())).status_code == 401
    (tmp_path / "again").mkdir()
    async with serving_source(tmp_path / "again", sender) as client:
        assert (await client.send(sender.compose(), query="?added=1")).status_code == 401
        assert (await client.send(sender.compose())).status_code in (202, 200)
