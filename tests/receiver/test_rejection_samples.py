"""Samples of rejected requests: small, without credentials, and written in the background."""

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from oncehook import Inbox
from oncehook.model.delivery import Rejection
from oncehook.operations.doctor import diagnose
from oncehook.providers.definition import built_in, built_in_names
from oncehook.providers.sample import compose
from oncehook.store.rows import MAX_REJECTIONS
from oncehook.testing import deliver, post
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.providers import NOW, sender
from tests.support.rejections import BODY, make_rejection, make_source
from tests.support.stores import missing_table
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


SAMPLES = "SELECT source, reason, body, size FROM webhook_rejections ORDER BY id"


async def wait_for_rows(rows: Rows, sql: str, count: int) -> None:
    await eventually(lambda: len(rows(sql)) >= count, f"{sql} returns {count} rows")


async def test_a_rejected_delivery_is_stored_as_a_sample_and_never_as_a_receipt(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body()
    assert (await deliver(inbox, "stripe", body, secret="whsec_other")).status == 401
    await wait_for_rows(rows, SAMPLES, 1)
    assert rows(SAMPLES) == [("stripe", "bad_signature", body, len(body))]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
    ((headers,),) = rows("SELECT headers FROM webhook_rejections")
    assert json.loads(headers)["stripe-signature"].startswith("t=")


async def test_a_flood_of_forgeries_writes_one_sample_per_second_and_sources_alternate(
    inbox: Inbox, rows: Rows
) -> None:
    for number in range(300):
        assert (await deliver(inbox, "stripe", stripe_body(f"evt_{number}"), secret="whsec_other")).status == 401
    assert (await post(inbox, "github", b"{}", {"X-Hub-Signature-256": "sha256=00"})).status == 401
    await wait_for_rows(rows, SAMPLES, 2)
    assert [row[0] for row in rows(SAMPLES)][:2] == ["stripe", "github"]
    assert len(rows(SAMPLES)) <= 3


async def test_a_long_body_is_truncated_and_its_size_is_stored(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body(filler="x" * 200_000)
    assert (await deliver(inbox, "stripe", body, secret="whsec_other")).status == 401
    await wait_for_rows(rows, SAMPLES, 1)
    assert rows(SAMPLES) == [("stripe", "bad_signature", body[:65_536], len(body))]


async def test_a_sample_contains_no_credentials(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("postmark", secrets=["user:right-password"])
    inbox.source("stripe", secrets=["whsec_test"])
    basic = base64.b64encode(b"user:wrong-password").decode()
    secret = {"Cookie": "session=s3cret", "X-Api-Key": "s3cret", "Authorization": "Bearer s3cret"}
    async with inbox.lifespan():
        assert (await post(inbox, "postmark", b"{}", {"Authorization": f"Basic {basic}"})).status == 401
        assert (await post(inbox, "stripe", b"{}", {"Stripe-Signature": "t=1,v1=00", **secret})).status == 401
    stored = str(rows("SELECT headers FROM webhook_rejections"))
    assert basic not in stored and "s3cret" not in stored and "stripe-signature" in stored
    assert len(rows(SAMPLES)) == 2


FOREIGN = [
    "X-Telegram-Bot-Api-Secret-Token", "X-Goog-Channel-Token", "X-Vault-Token", "Api-Key", "X-Auth-Key", "X-Secret",
    "Authentication", "X-Gitlab-Token", "X-Session-Id", "Proxy-Authorization", "X-Password",
    "Cf-Access-Jwt-Assertion", "X-Goog-Iap-Jwt-Assertion", "X-Amzn-Oidc-Data", "DPoP", "X-Forwarded-Client-Cert",
]  # fmt: skip


async def test_credentials_of_other_providers_are_stored_neither_in_samples_nor_in_payloads(
    inbox: Inbox, rows: Rows
) -> None:
    signatures = {
        signature.header for name in built_in_names() for signature in built_in(name).signatures if signature.header
    }
    foreign = [*FOREIGN, *(name.replace("*", "1") for name in signatures), "Plaid-Verification"]
    body = stripe_body()
    secret = {name: "s3cret" for name in foreign if name.lower() != "stripe-signature"}
    assert (await post(inbox, "stripe", body, {**secret, "X-Kept": "1"})).status == 401
    assert (await post(inbox, "stripe", body, {**stripe_headers(body), **secret, "X-Kept": "1"})).status == 202
    await wait_for_rows(rows, SAMPLES, 1)
    (sample,), (event,) = rows("SELECT headers FROM webhook_rejections"), rows("SELECT headers FROM webhook_payloads")
    for (headers,) in (sample, event):
        assert "s3cret" not in headers and json.loads(headers)["x-kept"] == "1"


async def test_a_header_that_identifies_the_event_is_stored_whatever_its_name(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], correlation="header:X-Session-Id")
    body = stripe_body()
    async with inbox.lifespan():
        assert (await post(inbox, "stripe", body, {**stripe_headers(body), "X-Session-Id": "s1"})).status == 202
    assert json.loads(rows("SELECT headers FROM webhook_payloads")[0][0])["x-session-id"] == "s1"


HEADS = {
    "many": {f"X-H{number}": "a" * 100 for number in range(180)},
    "long values": {f"X-H{number}": "a" * 4000 for number in range(15)},
    "long names": {f"X-{number}-{'n' * 3000}": "a" for number in range(15)},
    "one long": {"X-H": "ü" * 60_000},
}


@pytest.mark.parametrize("case", HEADS)
async def test_the_sample_of_a_large_head_is_small_and_contains_the_signature(
    inbox: Inbox, rows: Rows, case: str
) -> None:
    signed = {"Stripe-Signature": "t=1,v1=" + "0" * 64}
    assert (await post(inbox, "stripe", b"{}", {**HEADS[case], **signed})).status == 401
    await wait_for_rows(rows, SAMPLES, 1)
    ((headers,),) = rows("SELECT headers FROM webhook_rejections")
    stored = json.loads(headers)
    assert len(stored) <= 100 and sum(map(len, [*stored, *stored.values()])) <= 16_384 and len(headers) < 20_000
    assert max(map(len, stored)) <= 200 and stored["stripe-signature"] == signed["Stripe-Signature"]


async def test_a_sample_contains_only_parameter_names_of_an_unsigned_query(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("square", secrets=["a secret"], public_url="https://a.example/hook")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        for source in ("square", "stripe"):
            assert (await post(inbox, source, b"{}", {}, query="token=t1&x=2")).status == 401
    queries: dict[str, str] = dict(rows("SELECT source, query FROM webhook_rejections"))
    assert queries == {"square": "token=t1&x=2", "stripe": "token=…&x=…"}


async def test_the_newest_samples_of_each_source_are_kept(inbox: Inbox) -> None:
    store = inbox._runtime.store
    for number in range(MAX_REJECTIONS + 5):
        await store.rejections.keep(
            Rejection(
                source="stripe",
                tenant="",
                reason="bad_signature",
                detail=str(number),
                method="POST",
                query="",
                headers="{}",
                body=b"x",
                size=1,
            )
        )
    await store.rejections.keep(
        Rejection(
            source="github",
            tenant="",
            reason="malformed",
            detail="",
            method="POST",
            query="",
            headers="{}",
            body=b"",
            size=0,
        )
    )
    samples = await store.rejections.find("stripe", limit=100)
    assert [row.detail for row in samples] == [str(n) for n in reversed(range(5, MAX_REJECTIONS + 5))]
    assert len(await store.rejections.find(limit=100)) == MAX_REJECTIONS + 1
    assert samples[0].rejected_at.endswith("Z") and bytes(samples[0].body) == b"x"


async def test_a_failed_sample_write_does_not_change_the_response(
    inbox: Inbox, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    with missing_table(rows, "webhook_rejections"):
        assert (await deliver(inbox, "stripe", stripe_body(), secret="whsec_other")).status == 401
        await eventually(lambda: "rejection_sample_lost" in [event for event, _ in emitted], "the write fails")
    assert (await deliver(inbox, "stripe", stripe_body(), secret="whsec_other")).status == 401
    await wait_for_rows(rows, SAMPLES, 1)


async def diagnoses(inbox: Inbox) -> list[tuple[str, str]]:
    """The causes that the doctor finds and their evidence, newest first."""
    rows = await inbox._runtime.store.rejections.find(limit=10)
    return [
        (finding.cause, finding.shows) for row in rows for finding in diagnose(row, inbox._runtime.sources[row.source])
    ]


async def test_the_doctor_diagnoses_a_message_of_another_topic(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("ses", topics=["arn:aws:sns:eu-west-1:1:mine"])
    async with inbox.lifespan():
        sent = compose(built_in("ses"), "Bounce", sender("ses").pair().signing, now=NOW)
        assert (await post(inbox, "ses", sent.body, sent.headers)).status == 401
        await inbox._runtime.reception.rejection_samples.stop()
        assert await diagnoses(inbox) == [("topic", "The topic is not one of the source's topics.")]


async def test_a_rejected_handshake_is_stored_without_its_token(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("meta", secrets=["a secret"], verify_token="the right one")
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=inbox), base_url="http://test") as client,
    ):
        hub = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "a-wrong-one"}
        assert (await client.get("/meta", params=hub)).status_code == 401
        await inbox._runtime.reception.rejection_samples.stop()
        assert await diagnoses(inbox) == [("handshake", "The handshake does not repeat the source's verify_token.")]
    assert "a-wrong-one" not in str(rows("SELECT * FROM webhook_rejections"))


async def test_the_secret_that_a_rejected_handshake_offers_is_not_stored(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("notion")
    async with inbox.lifespan():
        offered = b'{"verification_token":"s3cret of Notion"}'
        assert (await post(inbox, "notion", offered, {})).status == 400
    assert rows("SELECT reason FROM webhook_rejections") == [("malformed",)]
    assert "s3cret" not in str([bytes(row[0]) for row in rows("SELECT body FROM webhook_rejections")])


async def test_an_authentic_body_that_cannot_be_parsed_is_stored_as_a_sample(inbox: Inbox) -> None:
    assert (await post(inbox, "stripe", b"{", stripe_headers(b"{"))).status == 400
    await inbox._runtime.reception.rejection_samples.stop()
    ((cause, _),) = await diagnoses(inbox)
    assert cause == "malformed"


async def test_sample_of_an_encrypted_source_has_neither_body_nor_headers_nor_query() -> None:
    source = make_source(encrypt=True)
    headers = {**stripe_headers(BODY, "whsec_other"), "x-note": "private"}
    sample = make_rejection(source, BODY, headers, query="name=private")
    assert (sample.body, sample.headers, sample.query, sample.size) == (b"", "{}", "", len(BODY))
    assert sample.reason == "bad_signature" and "private" not in sample.detail
