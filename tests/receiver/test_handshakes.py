"""Handshakes through the door: answered only when they are authentic, and without a row."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncehook import Inbox
from oncehook.concurrency.clock import Clock
from oncehook.model.receipt import Filter
from oncehook.providers.certificates import Certificates, Fetch
from oncehook.providers.sign import sign
from oncehook.web.app import Service
from tests.providers.families.test_sns import HOSTILE_ORIGINS
from tests.support.providers import CERTIFICATE_URL, NOW, TOPIC, pem_of, sender
from tests.support.tls_server import Canary

pytestmark = pytest.mark.anyio

CONFIRM = f"https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336412f37f"
SES = sender("ses")


class Then(Clock):
    """A clock that stands where the test's signatures were made."""

    def now(self) -> float:
        return NOW


class Recorder:
    """What the door fetched: the certificate that it is given, and any other address it was led to."""

    def __init__(self, *, confirmation: bytes | OSError = b"<ok/>") -> None:
        self.asked: list[str] = []
        self.confirmation = confirmation

    async def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        if url == CERTIFICATE_URL:
            return pem_of()
        if isinstance(self.confirmation, OSError):
            raise self.confirmation
        return self.confirmation


Post = Callable[..., Any]


@asynccontextmanager
async def door(folder: Path, fetch: Fetch | None = None, **sources: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a running service; when the block ends, no row may be there."""
    certificates = Certificates() if fetch is None else Certificates(fetch=fetch)
    inbox = Inbox(f"sqlite:///{folder / 'inbox.db'}", certificates=certificates, clock=Then())
    for name, settings in sources.items():
        inbox.source(name, **settings)
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
    ):
        yield client
        assert await inbox._runtime.store.receipts.find(Filter(), limit=10) == []


def confirmation(**changes: Any) -> bytes:
    """A SubscriptionConfirmation as SNS sends it, signed."""
    fields = {
        "Type": "SubscriptionConfirmation", "MessageId": "165545c9", "Token": "2336412f37f", "TopicArn": TOPIC,
        "Message": "You have chosen to subscribe.\nTo confirm, visit the SubscribeURL.", "SubscribeURL": CONFIRM,
        "Timestamp": "2027-01-15T08:00:00.000Z", "SignatureVersion": "2", "SigningCertURL": CERTIFICATE_URL, **changes,
    }  # fmt: skip
    _, body = sign(SES.provider, json.dumps(fields).encode(), SES.pair().signing, now=NOW)
    return body


def with_(body: bytes, **changes: Any) -> bytes:
    """The body with other fields, and the signature that it had."""
    return json.dumps({**json.loads(body), **changes}).encode()


# -- SNS ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_subscription_is_confirmed_after_its_signature_and_topic_are_verified(
    tmp_path: Path, version: str
) -> None:
    recorder = Recorder()
    async with door(tmp_path, recorder, ses={"topics": [TOPIC]}) as client:
        answer = await client.post("/webhooks/ses", content=confirmation(SignatureVersion=version))
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (
        200,
        "confirmed",
        "text/plain; charset=utf-8",
    )
    assert recorder.asked == [CERTIFICATE_URL, CONFIRM]


FORGED = {
    "tampered": lambda: with_(confirmation(), Token="other"),
    "another address under an old signature": lambda: with_(confirmation(), SubscribeURL=CONFIRM + "0"),
    "no signature": lambda: with_(confirmation(), Signature=""),
    "a field missing": lambda: with_(confirmation(), Token=None),
    "another topic, authentic": lambda: confirmation(TopicArn="arn:aws:sns:eu-west-1:999999999999:theirs"),
    "long ago": lambda: confirmation(Timestamp="2027-01-15T06:54:59.000Z"),
    "from the future": lambda: confirmation(Timestamp="2027-01-15T08:05:01.000Z"),
    "a certificate elsewhere": lambda: confirmation(
        SigningCertURL=CERTIFICATE_URL.replace("eu-west-1", "s3-eu-west-1")
    ),
}


@pytest.mark.parametrize("kind", FORGED)
async def test_a_forged_confirmation_is_refused_and_its_address_is_never_visited(tmp_path: Path, kind: str) -> None:
    recorder = Recorder()
    async with door(tmp_path, recorder, ses={"topics": [TOPIC]}) as client:
        answer = await client.post("/webhooks/ses", content=FORGED[kind]())
    assert answer.status_code == 401
    assert set(recorder.asked) <= {CERTIFICATE_URL}


async def test_an_authentic_confirmation_leads_nowhere_but_to_sns(tmp_path: Path) -> None:
    with Canary() as canary:
        addresses = [
            f"{origin}{CONFIRM.removeprefix('https://sns.eu-west-1.amazonaws.com')}" for origin in HOSTILE_ORIGINS
        ]
        addresses += [
            f"https://127.0.0.1:{canary.port}/",
            f"http://127.0.0.1:{canary.port}/?Action=ConfirmSubscription&x=y",
        ]
        recorder = Recorder()
        async with door(tmp_path, recorder, ses={"topics": [TOPIC]}) as client:
            for address in addresses:
                body = confirmation(SubscribeURL=address) if "\n" not in address else None
                if body is not None:
                    assert (await client.post("/webhooks/ses", content=body)).status_code == 400, address
        async with door(tmp_path, ses={"topics": [TOPIC], "secrets": [pem_of().decode()]}) as client:
            for address in addresses[-2:]:
                assert (
                    await client.post("/webhooks/ses", content=confirmation(SubscribeURL=address))
                ).status_code == 400
                assert (
                    await client.post("/webhooks/ses", content=with_(confirmation(), SubscribeURL=address))
                ).status_code == 401
    assert recorder.asked == [CERTIFICATE_URL]
    assert canary.connections == 0


async def test_when_sns_does_not_answer_the_sender_is_asked_to_try_again(tmp_path: Path) -> None:
    async with door(tmp_path, Recorder(confirmation=OSError("it answered 500")), ses={"topics": [TOPIC]}) as client:
        answer = await client.post("/webhooks/ses", content=confirmation())
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0


async def test_when_the_certificate_cannot_be_had_it_is_no_verdict(tmp_path: Path) -> None:
    async def unreachable(url: str) -> bytes:
        raise OSError("it did not answer")

    async with door(tmp_path, unreachable, ses={"topics": [TOPIC]}) as client:
        assert (await client.post("/webhooks/ses", content=confirmation())).status_code == 503
        assert (await client.post("/webhooks/ses", content=confirmation(TopicArn="arn:x"))).status_code == 401


# -- Slack ----------------------------------------------------------------------------------------------------------

SLACK: dict[str, Any] = {"secrets": [sender("slack").pair().verifying]}
CHALLENGE = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"


def url_verification(*, now: float = NOW, number: int = 0, **changes: Any) -> dict[str, Any]:
    body = json.dumps({"token": "t", "type": "url_verification", "challenge": CHALLENGE, **changes}).encode()
    given = {"Content-Type": "application/json"}
    headers, _ = sign(sender("slack").provider, body, sender("slack").pair(number).signing, headers=given, now=now)
    return {"content": body, "headers": headers}


async def test_slack_gets_its_challenge_back_as_text_and_nothing_else(tmp_path: Path) -> None:
    async with door(tmp_path, slack=SLACK) as client:
        answer = await client.post("/webhooks/slack", **url_verification(other="not echoed"))
    assert (answer.status_code, answer.text) == (200, CHALLENGE)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_challenge_that_is_not_signed_now_by_slack_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path, slack=SLACK) as client:
        unsigned = {"content": url_verification()["content"]}
        for request in (
            unsigned,
            url_verification(number=1),
            url_verification(now=NOW - 301),
            url_verification(now=NOW + 301),
        ):
            answer = await client.post("/webhooks/slack", **request)
            assert answer.status_code == 401 and CHALLENGE not in answer.text


@pytest.mark.parametrize("challenge", ["<script>", "", "a" * 101, "a\r\nb", "é", None, 7, ["a"], {"a": 1}])
async def test_a_challenge_that_slack_would_not_send_is_not_echoed(tmp_path: Path, challenge: object) -> None:
    async with door(tmp_path, slack=SLACK) as client:
        answer = await client.post("/webhooks/slack", **url_verification(challenge=challenge))
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    assert "script" not in answer.text
