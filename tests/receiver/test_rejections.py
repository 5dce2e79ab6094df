"""What is kept of refused requests and of secrets' uses: little, without credentials, and in nobody's way."""

import asyncio
import base64
import json
from collections.abc import Callable

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
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

SAMPLES = "SELECT source, reason, body, size FROM webhook_rejections ORDER BY id"
USES = "SELECT source, secret, verified FROM webhook_secrets ORDER BY source, secret"


async def until_there_are(rows: Rows, sql: str, count: int) -> None:
    await eventually(lambda: len(rows(sql)) >= count, f"{sql} returns {count} rows")


async def test_a_refused_delivery_is_kept_as_a_sample_and_never_as_a_receipt(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body()
    assert (await deliver(inbox, "stripe", body, secret="whsec_other")).status == 401
    await until_there_are(rows, SAMPLES, 1)
    assert rows(SAMPLES) == [("stripe", "bad_signature", body, len(body))]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
    ((headers,),) = rows("SELECT headers FROM webhook_rejections")
    assert json.loads(headers)["stripe-signature"].startswith("t=")


async def test_a_flood_of_forgeries_writes_one_sample_a_second_and_sources_take_turns(inbox: Inbox, rows: Rows) -> None:
    for number in range(300):
        assert (await deliver(inbox, "stripe", stripe_body(f"evt_{number}"), secret="whsec_other")).status == 401
    assert (await post(inbox, "github", b"{}", {"X-Hub-Signature-256": "sha256=00"})).status == 401
    await until_there_are(rows, SAMPLES, 2)
    assert [row[0] for row in rows(SAMPLES)][:2] == ["stripe", "github"]
    assert len(rows(SAMPLES)) <= 3


async def test_a_long_body_is_cut_and_its_whole_size_is_kept(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body(filler="x" * 200_000)
    assert (await deliver(inbox, "stripe", body, secret="whsec_other")).status == 401
    await until_there_are(rows, SAMPLES, 1)
    assert rows(SAMPLES) == [("stripe", "bad_signature", body[:65_536], len(body))]


async def test_no_credential_is_kept(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("postmark", secrets=["user:right-password"])
    inbox.source("stripe", secrets=["whsec_test"])
    basic = base64.b64encode(b"user:wrong-password").decode()
    secret = {"Cookie": "session=s3cret", "X-Api-Key": "s3cret", "Authorization": "Bearer s3cret"}
    async with inbox.lifespan():
        assert (await post(inbox, "postmark", b"{}", {"Authorization": f"Basic {basic}"})).status == 401
        assert (await post(inbox, "stripe", b"{}", {"Stripe-Signature": "t=1,v1=00", **secret})).status == 401
    kept = str(rows("SELECT headers FROM webhook_rejections"))
    assert basic not in kept and "s3cret" not in kept and "stripe-signature" in kept
    assert len(rows(SAMPLES)) == 2


FOREIGN = [
    "X-Telegram-Bot-Api-Secret-Token", "X-Goog-Channel-Token", "X-Vault-Token", "Api-Key", "X-Auth-Key", "X-Secret",
    "Authentication", "X-Gitlab-Token", "X-Session-Id", "Proxy-Authorization", "X-Password",
    "Cf-Access-Jwt-Assertion", "X-Goog-Iap-Jwt-Assertion", "X-Amzn-Oidc-Data", "DPoP", "X-Forwarded-Client-Cert",
]  # fmt: skip


async def test_credentials_of_other_providers_are_kept_neither_with_a_sample_nor_with_an_event(
    inbox: Inbox, rows: Rows
) -> None:
    signatures = {one.header for name in built_in_names() for one in built_in(name).signatures if one.header}
    foreign = [*FOREIGN, *(name.replace("*", "1") for name in signatures), "Plaid-Verification"]
    body = stripe_body()
    secret = {name: "s3cret" for name in foreign if name.lower() != "stripe-signature"}
    assert (await post(inbox, "stripe", body, {**secret, "X-Kept": "1"})).status == 401
    assert (await post(inbox, "stripe", body, {**stripe_headers(body), **secret, "X-Kept": "1"})).status == 202
    await until_there_are(rows, SAMPLES, 1)
    (sample,), (event,) = rows("SELECT headers FROM webhook_rejections"), rows("SELECT headers FROM webhook_payloads")
    for (kept,) in (sample, event):
        assert "s3cret" not in kept and json.loads(kept)["x-kept"] == "1"


async def test_a_header_that_names_the_event_is_kept_whatever_its_name(
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
async def test_sample_of_a_large_head_is_small_and_has_the_signature(inbox: Inbox, rows: Rows, case: str) -> None:
    signed = {"Stripe-Signature": "t=1,v1=" + "0" * 64}
    assert (await post(inbox, "stripe", b"{}", {**HEADS[case], **signed})).status == 401
    await until_there_are(rows, SAMPLES, 1)
    ((headers,),) = rows("SELECT headers FROM webhook_rejections")
    kept = json.loads(headers)
    assert len(kept) <= 100 and sum(map(len, [*kept, *kept.values()])) <= 16_384 and len(headers) < 20_000
    assert max(map(len, kept)) <= 200 and kept["stripe-signature"] == signed["Stripe-Signature"]


async def test_of_a_query_only_the_names_are_kept_unless_the_address_is_signed(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("square", secrets=["a secret"], public_url="https://a.example/hook")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        for source in ("square", "stripe"):
            assert (await post(inbox, source, b"{}", {}, query="token=t1&x=2")).status == 401
    kept = dict(rows("SELECT source, query FROM webhook_rejections"))
    assert kept == {"square": "token=t1&x=2", "stripe": "token=…&x=…"}


async def test_of_each_source_the_newest_samples_stay(inbox: Inbox) -> None:
    store = inbox._runtime.store
    for number in range(MAX_REJECTIONS + 5):
        await store.rejections.keep(
            Rejection(
                source="stripe",
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
            source="github", reason="malformed", detail="", method="POST", query="", headers="{}", body=b"", size=0
        )
    )
    kept = await store.rejections.find("stripe", limit=100)
    assert [row.detail for row in kept] == [str(n) for n in reversed(range(5, MAX_REJECTIONS + 5))]
    assert len(await store.rejections.find(limit=100)) == MAX_REJECTIONS + 1
    assert kept[0].rejected_at.endswith("Z") and bytes(kept[0].body) == b"x"


async def test_a_store_that_fails_changes_no_answer(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(rejection: Rejection) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(inbox._runtime.store.rejections, "keep", broken)
    for _ in range(3):
        assert (await deliver(inbox, "stripe", stripe_body(), secret="whsec_other")).status == 401
        await asyncio.sleep(0.01)


# -- what is refused for another reason than its signature -----------------------------------------------------------


async def kept(inbox: Inbox) -> list[tuple[str, str]]:
    """The causes that the doctor names, with what shows them, newest first."""
    rows = await inbox._runtime.store.rejections.find(limit=10)
    return [(found.cause, found.shows) for row in rows for found in diagnose(row, inbox._runtime.sources[row.source])]


async def test_a_message_of_a_foreign_topic_is_kept_and_the_doctor_says_so(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("ses", topics=["arn:aws:sns:eu-west-1:1:mine"])
    async with inbox.lifespan():
        sent = compose(built_in("ses"), "Bounce", sender("ses").pair().signing, now=NOW)
        assert (await post(inbox, "ses", sent.body, sent.headers)).status == 401
        await inbox._runtime.reception.rejection_samples.stop()
        assert await kept(inbox) == [("topic", "The topic is not one of the source's topics.")]


async def test_a_refused_handshake_is_kept_without_its_token(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("meta", secrets=["a secret"], verify_token="the right one")
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=inbox), base_url="http://test") as client,
    ):
        hub = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "a-wrong-one"}
        assert (await client.get("/meta", params=hub)).status_code == 401
        await inbox._runtime.reception.rejection_samples.stop()
        assert await kept(inbox) == [("handshake", "The handshake does not repeat the source's verify_token.")]
    assert "a-wrong-one" not in str(rows("SELECT * FROM webhook_rejections"))


async def test_a_secret_that_a_refused_handshake_offers_is_not_kept(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("notion")
    async with inbox.lifespan():
        offered = b'{"verification_token":"s3cret of Notion"}'
        assert (await post(inbox, "notion", offered, {})).status == 400
    assert rows("SELECT reason FROM webhook_rejections") == [("malformed",)]
    assert "s3cret" not in str([bytes(row[0]) for row in rows("SELECT body FROM webhook_rejections")])


async def test_an_authentic_body_that_cannot_be_read_is_kept(inbox: Inbox) -> None:
    assert (await post(inbox, "stripe", b"{", stripe_headers(b"{"))).status == 400
    await inbox._runtime.reception.rejection_samples.stop()
    ((cause, _),) = await kept(inbox)
    assert cause == "malformed"


# -- secrets --------------------------------------------------------------------------------------------------------


async def test_which_secret_verified_is_counted_and_written_at_the_end(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    for round_ in range(2):
        inbox = make_inbox()
        source = inbox.source("stripe", secrets=["whsec_new", "whsec_old"])
        async with inbox.lifespan():
            for number in range(3):
                body = stripe_body(f"evt_{round_}_{number}")
                assert (await deliver(inbox, "stripe", body, secret="whsec_old")).status == 202
            body = stripe_body(f"evt_{round_}_new")
            assert (await post(inbox, "stripe", body, stripe_headers(body, "whsec_new"))).status == 202
    new, old = source.fingerprints
    assert sorted(rows(USES)) == sorted([("stripe", new, 2), ("stripe", old, 6)])
    assert new != old and "whsec" not in str(rows(USES))


async def test_uses_that_could_not_be_written_are_written_next_time(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deliver(inbox, "stripe", stripe_body())
    with monkeypatch.context() as patch:

        async def broken(used: object) -> None:
            raise OSError("disk full")

        patch.setattr(inbox._runtime.store.rejections, "note_secrets", broken)
        await inbox._runtime.reception.secret_uses.write()
    assert rows(USES) == []
    await inbox._runtime.reception.secret_uses.write()
    await inbox._runtime.reception.secret_uses.write()
    assert [row[2] for row in rows(USES)] == [1]
