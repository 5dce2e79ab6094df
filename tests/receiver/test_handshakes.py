"""Handshakes: the receiver answers them only if they are authentic, and stores no row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook.providers.sign import sign
from tests.providers.families.test_sns import HOSTILE_ORIGINS
from tests.support.providers import CERTIFICATE_URL, NOW, TOPIC, pem_of, sender
from tests.support.receiver import serving_handshakes
from tests.support.tls_server import Canary

pytestmark = pytest.mark.anyio


CONFIRM = f"https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336412f37f"


SES = sender("ses")


class RecordingFetch:
    """Records the addresses that the receiver requests, and returns the certificate of the tests."""

    def __init__(self, *, confirmation: bytes | OSError = b"<ok/>") -> None:
        self.requested: list[str] = []
        self.confirmation = confirmation

    async def __call__(self, url: str) -> bytes:
        self.requested.append(url)
        if url == CERTIFICATE_URL:
            return pem_of()
        if isinstance(self.confirmation, OSError):
            raise self.confirmation
        return self.confirmation


Post = Callable[..., Any]


def confirmation(**changes: Any) -> bytes:
    """A SubscriptionConfirmation as SNS sends it, signed."""
    fields = {
        "Type": "SubscriptionConfirmation", "MessageId": "165545c9", "Token": "2336412f37f", "TopicArn": TOPIC,
        "Message": "You have chosen to subscribe.\nTo confirm, visit the SubscribeURL.", "SubscribeURL": CONFIRM,
        "Timestamp": "2027-01-15T08:00:00.000Z", "SignatureVersion": "2", "SigningCertURL": CERTIFICATE_URL, **changes,
    }  # fmt: skip
    _, body = sign(SES.provider, json.dumps(fields).encode(), SES.pair().signing, now=NOW)
    return body


def with_fields(body: bytes, **changes: Any) -> bytes:
    """The body with other fields and its old signature."""
    return json.dumps({**json.loads(body), **changes}).encode()


@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_subscription_is_confirmed_after_its_signature_and_topic_are_verified(
    tmp_path: Path, version: str
) -> None:
    recorder = RecordingFetch()
    async with serving_handshakes(tmp_path, recorder, ses={"topics": [TOPIC]}) as client:
        answer = await client.post("/webhooks/ses", content=confirmation(SignatureVersion=version))
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (
        200,
        "confirmed",
        "text/plain; charset=utf-8",
    )
    assert recorder.requested == [CERTIFICATE_URL, CONFIRM]


FORGED = {
    "tampered": lambda: with_fields(confirmation(), Token="other"),
    "another address under an old signature": lambda: with_fields(confirmation(), SubscribeURL=CONFIRM + "0"),
    "no signature": lambda: with_fields(confirmation(), Signature=""),
    "a field missing": lambda: with_fields(confirmation(), Token=None),
    "another topic, authentic": lambda: confirmation(TopicArn="arn:aws:sns:eu-west-1:999999999999:theirs"),
    "long ago": lambda: confirmation(Timestamp="2027-01-15T06:54:59.000Z"),
    "from the future": lambda: confirmation(Timestamp="2027-01-15T08:05:01.000Z"),
    "a certificate elsewhere": lambda: confirmation(
        SigningCertURL=CERTIFICATE_URL.replace("eu-west-1", "s3-eu-west-1")
    ),
}


@pytest.mark.parametrize("kind", FORGED)
async def test_a_forged_confirmation_is_rejected_and_its_address_is_never_requested(tmp_path: Path, kind: str) -> None:
    recorder = RecordingFetch()
    async with serving_handshakes(tmp_path, recorder, ses={"topics": [TOPIC]}) as client:
        answer = await client.post("/webhooks/ses", content=FORGED[kind]())
    assert answer.status_code == 401
    assert set(recorder.requested) <= {CERTIFICATE_URL}


async def test_an_authentic_confirmation_is_only_confirmed_at_an_sns_address(tmp_path: Path) -> None:
    with Canary() as canary:
        addresses = [
            f"{origin}{CONFIRM.removeprefix('https://sns.eu-west-1.amazonaws.com')}" for origin in HOSTILE_ORIGINS
        ]
        addresses += [
            f"https://127.0.0.1:{canary.port}/",
            f"http://127.0.0.1:{canary.port}/?Action=ConfirmSubscription&x=y",
        ]
        recorder = RecordingFetch()
        async with serving_handshakes(tmp_path, recorder, ses={"topics": [TOPIC]}) as client:
            for address in addresses:
                body = confirmation(SubscribeURL=address) if "\n" not in address else None
                if body is not None:
                    assert (await client.post("/webhooks/ses", content=body)).status_code == 400, address
        async with serving_handshakes(tmp_path, ses={"topics": [TOPIC], "secrets": [pem_of().decode()]}) as client:
            for address in addresses[-2:]:
                assert (
                    await client.post("/webhooks/ses", content=confirmation(SubscribeURL=address))
                ).status_code == 400
                assert (
                    await client.post("/webhooks/ses", content=with_fields(confirmation(), SubscribeURL=address))
                ).status_code == 401
    assert recorder.requested == [CERTIFICATE_URL]
    assert canary.connections == 0


async def test_the_sender_gets_503_if_sns_does_not_respond(tmp_path: Path) -> None:
    async with serving_handshakes(
        tmp_path, RecordingFetch(confirmation=OSError("it answered 500")), ses={"topics": [TOPIC]}
    ) as client:
        answer = await client.post("/webhooks/ses", content=confirmation())
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0


async def test_the_sender_gets_503_if_the_certificate_cannot_be_fetched(tmp_path: Path) -> None:
    async def unreachable(url: str) -> bytes:
        raise OSError("it did not answer")

    async with serving_handshakes(tmp_path, unreachable, ses={"topics": [TOPIC]}) as client:
        assert (await client.post("/webhooks/ses", content=confirmation())).status_code == 503
        assert (await client.post("/webhooks/ses", content=confirmation(TopicArn="arn:x"))).status_code == 401


SLACK: dict[str, Any] = {"secrets": [sender("slack").pair().verifying]}


CHALLENGE = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"


def url_verification(*, now: float = NOW, number: int = 0, **changes: Any) -> dict[str, Any]:
    body = json.dumps({"token": "t", "type": "url_verification", "challenge": CHALLENGE, **changes}).encode()
    content_type = {"Content-Type": "application/json"}
    headers, _ = sign(
        sender("slack").provider, body, sender("slack").pair(number).signing, headers=content_type, now=now
    )
    return {"content": body, "headers": headers}


async def test_slack_gets_only_its_challenge_back_as_text(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, slack=SLACK) as client:
        answer = await client.post("/webhooks/slack", **url_verification(other="not echoed"))
    assert (answer.status_code, answer.text) == (200, CHALLENGE)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_challenge_without_a_current_slack_signature_is_rejected(tmp_path: Path) -> None:
    async with serving_handshakes(tmp_path, slack=SLACK) as client:
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
    async with serving_handshakes(tmp_path, slack=SLACK) as client:
        answer = await client.post("/webhooks/slack", **url_verification(challenge=challenge))
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    assert "script" not in answer.text
