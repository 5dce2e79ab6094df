"""Large deliveries are verified in a thread, and the bytes that wait for it are bounded."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest

from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.model.receipt import Filter
from oncehook.providers.families.each import MAX_ELEMENTS
from oncehook.receiver.verification import VerificationThread
from tests.support.providers import NOW, Sender, changed, sender
from tests.support.receiver import serving_source
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def _large_github(sender: Sender) -> Delivery:
    genuine = sender.compose()
    event = msgspec.json.decode(genuine.body) | {"commits": ["a" * 1000] * 20_000}
    return sender.resend(genuine, now=NOW, body=msgspec.json.encode(event))


def _large_mandrill(sender: Sender) -> Delivery:
    """Events in a form of 6 MB, of which most is escapes."""
    message = {"_id": "m", "html": '<p class="a">"&"</p>' * 20}
    events = [{"event": "open", "_id": f"m{i}", "ts": 1_800_000_000, "msg": message} for i in range(2500)]
    form = urlencode({"mandrill_events": msgspec.json.encode(events)}).encode()
    return sender.resend(sender.compose(), now=NOW, body=form)


def _large_graph(sender: Sender) -> Delivery:
    genuine = sender.compose()
    return changed(genuine, body=_repeated(genuine.body, "value", MAX_ELEMENTS))


def _repeated(body: bytes, path: str, times: int) -> bytes:
    parsed = msgspec.json.decode(body)
    first = parsed[path][0] | {"padding": "a" * 300}
    return msgspec.json.encode(parsed | {path: [first | {"id": f"n{i}"} for i in range(times)]})


@pytest.mark.parametrize(
    ("name", "make", "events"),
    [("github", _large_github, 1), ("mandrill", _large_mandrill, 2500), ("microsoft-graph", _large_graph, 1000)],
)
async def test_a_large_delivery_is_accepted_and_its_redelivery_is_a_duplicate(
    name: str, make: Callable[[Sender], Delivery], events: int, tmp_path: Path
) -> None:
    large_sender = sender(name)
    delivery = make(large_sender)
    assert len(delivery.body) > LARGE
    async with serving_source(tmp_path, large_sender) as client:
        first, second = await client.send(delivery), await client.send(delivery)
        assert (first.status_code, second.status_code) == (202, 200)
        assert len(await client.inbox._runtime.store.receipts.find(Filter(), limit=3000)) == events


@pytest.mark.parametrize(("name", "path"), [("microsoft-graph", "value"), ("adyen", "notificationItems")])
def test_a_delivery_with_too_many_elements_is_rejected(name: str, path: str) -> None:
    large_sender = sender(name)
    genuine, verifier = large_sender.compose(), large_sender.source().verifier
    assert verifier is not None
    first = msgspec.json.decode(genuine.body)[path][0]
    most, more = (msgspec.json.encode({path: [first] * times}) for times in (MAX_ELEMENTS, MAX_ELEMENTS + 1))
    assert verifier.verify(changed(genuine, body=most), NOW) == 0
    with pytest.raises(Rejected, match="bad_signature"):
        verifier.verify(changed(genuine, body=more), NOW)


async def test_a_small_body_is_verified_in_the_event_loop_and_a_large_one_in_a_thread() -> None:
    verification = VerificationThread(limit_bytes=2**20)

    def thread(delivery: Delivery) -> str:
        return threading.current_thread().name

    assert await verification.run(Delivery(b"a" * LARGE), thread) == threading.current_thread().name
    assert (await verification.run(Delivery(b"a" * (LARGE + 1)), thread)).startswith("oncehook-verify")


async def test_large_bodies_wait_for_the_thread_up_to_a_number_of_bytes() -> None:
    size = LARGE + 1
    verification = VerificationThread(limit_bytes=2 * size)
    free, running = threading.Event(), []

    def work(delivery: Delivery) -> int:
        running.append(delivery)
        assert free.wait(30)
        return len(running)

    first = asyncio.create_task(verification.run(Delivery(b"a" * size), work))
    second = asyncio.create_task(verification.run(Delivery(b"a" * size), work))
    await eventually(lambda: running, "the thread starts with the first body")
    with pytest.raises(Unavailable, match="wait to be verified") as full:
        await verification.run(Delivery(b"a" * size), work)
    assert full.value.retry_after == 2
    assert len(running) == 1, "the second body must wait for the first"
    free.set()
    assert [await first, await second] == [1, 2]
    assert await verification.run(Delivery(b"a" * size * 3), work) == 3, "a single body may have any size"


async def test_at_most_four_keys_are_fetched_for_one_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    source = sender("plaid").source()
    assert source.verifier is not None
    fetched: list[str] = []
    is_missing = True

    async def fetch(request: object) -> bool:
        fetched.append(str(request))
        return is_missing

    monkeypatch.setattr(source.verifier, "key_to_fetch", lambda delivery, now: f"key {len(fetched)}")
    monkeypatch.setattr(source.certificates, "ensure", fetch)
    verification = VerificationThread(limit_bytes=2**20)
    await verification.fetch_keys(source, source.verifier, Delivery(b"{}"), NOW)
    assert fetched == ["key 0", "key 1", "key 2", "key 3"]
    fetched.clear()
    is_missing = False
    await verification.fetch_keys(source, source.verifier, Delivery(b"{}"), NOW)
    assert fetched == ["key 0"], "a key that is cached is not asked for again"
