"""Signed deliveries to the real receiver: `sign`, `deliver` and `post`."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.providers.definition import built_in, built_in_names
from oncehook.testing import (
    advance,
    crash,
    deliver,
    drain,
    isolated,
    make_pair,
    post,
    receipt,
    sign,
)
from tests.support.events import Rows, stripe_body

pytestmark = pytest.mark.anyio


async def test_receiver_accepts_bodies_that_sign_has_signed(inbox: Inbox) -> None:
    body = stripe_body("evt_1")
    assert (await post(inbox, "stripe", body, sign("stripe", body, "whsec_new"))).outcome == (202, "accepted")
    assert (await post(inbox, "stripe", body, sign("stripe", body, "guessed"))).outcome == (401, "bad_signature")
    assert (await post(inbox, "stripe", body, sign("stripe", body, "whsec_new", now=1.0))).status == 401
    headers = sign("github", b"{}", "github-secret", headers={"X-GitHub-Delivery": "1", "X-GitHub-Event": "push"})
    assert (await post(inbox, "github", b"{}", headers)).outcome == (202, "accepted")


def test_sign_rejects_a_provider_that_signs_inside_the_body() -> None:
    body = b'{"signature": {"timestamp": "1", "token": "t"}, "event-data": {}}'
    with pytest.raises(ValueError, match="mailgun puts its signature into the body: use deliver"):
        sign("mailgun", body, "key")
    with pytest.raises(ConfigurationError, match="stripes"):
        sign("stripes", body, "key")


OPTIONS: dict[str, Any] = {
    "topics": ["arn:aws:sns:eu-west-1:1:mine"],
    "public_url": "https://a.example/webhooks/mine?account=1",
    "webhook_id": "WH-1",
    "verify_token": "a token",
}


def every_provider(database: str) -> Inbox:
    """An inbox with a source of each provider, none of whose private keys is known here."""
    inbox = Inbox(database, worker=False)
    for name in built_in_names():
        options = {option: OPTIONS[option] for option in built_in(name).options}
        inbox.source(f"my-{name}", provider=name, secrets=[make_pair(built_in(name)).verifying], **options)
    return inbox


async def test_event_of_every_provider_is_accepted_once_and_its_copies_are_duplicates(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'one.db'}"
    inbox = isolated(every_provider(f"sqlite:///{tmp_path / 'other.db'}"), database)
    async with inbox.lifespan():
        for name in built_in_names():
            first = await deliver(inbox, name, copies=3)
            others = [*first.others, await deliver(inbox, f"my-{name}", first.sent)]
            assert first.status in (200, 202, 204) and not first.was_duplicate, (name, first)
            if built_in(name).event.id == "new:delivery" or not first.body.startswith(b"{"):
                assert {other.outcome for other in others} == {first.outcome}, (name, others)
                continue
            events = first.json.get("accepted", 1)
            assert first.outcome[1] == "accepted" and events > 0, (name, first)
            for other in others:
                assert other.json.get("status") == "duplicate" or other.json["duplicate"] == events, (name, other)
    assert not (tmp_path / "other.db").exists()
    with closing(sqlite3.connect(tmp_path / "one.db")) as opened:
        receipts = dict(opened.execute("SELECT provider, count(*) FROM webhook_receipts GROUP BY provider"))
    assert set(receipts) == set(built_in_names()) and receipts["telegram"] == receipts["square"] == 1


async def test_payload_of_a_form_provider_may_be_plain_data(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("twilio", secrets=["a secret"], public_url="https://a.example/hook")
    inbox.source("mandrill", secrets=["a secret"], public_url="https://a.example/hook")
    inbox.source("braintree", secrets=["public|private"])
    async with inbox.lifespan():
        sms = await deliver(inbox, "twilio", {"MessageSid": "SM1", "MessageStatus": "delivered"})
        row = await receipt(inbox, sms)
        assert (row.object_id, row.type) == ("SM1", "delivered")
        mail = await deliver(inbox, "mandrill", [{"event": "send", "_id": "m1", "ts": 1}])
        assert mail.status == 202 and mail.json["accepted"] == 1
        with pytest.raises(ValueError, match="the events of braintree are XML"):
            await deliver(inbox, "braintree", {"kind": "check"})


async def test_event_id_is_written_into_a_form(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("twilio", secrets=["a secret"], public_url="https://a.example/hook", id="MessageSid")
    async with inbox.lifespan():
        answer = await deliver(inbox, "twilio", id="SM9")
        assert (await receipt(inbox, answer)).event_id == "SM9"


async def test_outcome_of_a_text_response_is_that_text(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("adyen", secrets=["00ff" * 16])
    async with inbox.lifespan():
        answer = await deliver(inbox, "adyen")
        assert answer.outcome == (200, "[accepted]") and answer.receipt is None and not answer.was_duplicate


async def test_forged_or_tampered_delivery_is_rejected_and_leaves_no_receipt(inbox: Inbox, rows: Rows) -> None:
    for forged in ({"secret": "guessed"}, {"tampered": True}, {"headers": {"stripe-signature": "t=1,v1=00"}}):
        assert (await deliver(inbox, "stripe", **forged)).status == 401, forged
    assert (await deliver(inbox, "stripe", now=inbox._runtime.clock.now() - 3600)).outcome == (401, "stale_timestamp")
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


async def test_payload_may_be_plain_data_or_exact_bytes(inbox: Inbox, rows: Rows) -> None:
    answer = await deliver(inbox, "stripe", {"id": "evt_1", "type": "invoice.paid"})
    row = await receipt(inbox, answer)
    assert (row.event_id, row.type, row.receipt) == ("evt_1", "invoice.paid", answer.receipt)
    exact = b'{ "id" : "evt_2","type":"x" }'
    await deliver(inbox, "stripe", exact)
    assert (exact,) in [(bytes(body),) for (body,) in rows("SELECT body FROM webhook_payloads")]


async def test_id_and_type_are_written_where_the_provider_has_them(inbox: Inbox) -> None:
    for source, type_ in (("stripe", "charge.refunded"), ("github", "pull_request.opened")):
        row = await receipt(inbox, await deliver(inbox, source, type=type_, id="mine"))
        assert (row.event_id, row.type) == ("mine", type_)
    row = await receipt(inbox, await deliver(inbox, "github", {"action": "opened"}, type="issues.opened", id="2"))
    assert (row.event_id, row.type) == ("2", "issues.opened")


async def test_unknown_source_missing_receipt_and_unusable_payload_are_errors(inbox: Inbox) -> None:
    with pytest.raises(LookupError, match="'unknown' is neither a source nor a provider of one: the sources are"):
        await deliver(inbox, "unknown")
    with pytest.raises(LookupError, match="the response has no receipt"):
        await receipt(inbox, await deliver(inbox, "stripe", secret="guessed"))
    with pytest.raises(ValueError, match="the payload has no object at 'id'"):
        await deliver(inbox, "stripe", b"[]", id="1")


async def test_helpers_need_a_running_inbox(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    for helper in (deliver(inbox, "stripe"), drain(inbox), crash(inbox), advance(inbox, "1h")):
        with pytest.raises(RuntimeError, match="the inbox is not running"):
            await helper


async def test_deliver_needs_the_private_key_of_a_public_key(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    pair = make_pair(built_in("sendgrid"))
    inbox.source("sendgrid", secrets=[pair.verifying])
    async with inbox.lifespan():
        with pytest.raises(ConfigurationError, match=r"sources\.sendgrid verifies with a public key"):
            await deliver(inbox, "sendgrid")
        assert (await deliver(inbox, "sendgrid", secret=pair.signing)).status == 202


async def test_inline_handler_runs_before_the_response(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe")).outcome == (200, "processed")
