"""Forwarded requests: body, signature, idempotency key and headers, on both databases."""

import asyncio
import base64
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import standardwebhooks

from oncehook.handlers import forward
from oncehook.handlers.forward import header_text
from oncehook.model.receipt import Filter
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import deliver, post
from tests.support.events import github_headers, make_claim, stripe_body
from tests.support.forwarding import running_inbox
from tests.support.http_target import (
    http_response,
    receiving,
    wait_for,
)
from tests.support.servers import run_sql
from tests.support.waiting import eventually
from tests.support.work import HISTORY, QUICK, claim, receipts_are

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"a secret of this test, 32 bytes.").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret that is rotated in").decode()


async def test_body_is_forwarded_unchanged_and_2xx_settles_the_event_as_processed(
    forward_config: Callable[..., Path], database: str
) -> None:
    body = b'{ "id" : "evt_1", "type": "invoice.paid",  "data": {"object": {"id": "in_1"}}, "\xc3\xa9": 1.10 }\n'
    async with (
        receiving(http_response(204)) as receiver,
        running_inbox(forward_config(receiver.url, f'forward_secret = "{SECRET}"')) as inbox,
    ):
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))
        (request,) = receiver.requests
        assert request.line == "POST /hooks?token=hidden-in-the-query HTTP/1.1"
        assert request.body == body
        headers = request.headers
        assert standardwebhooks.Webhook(SECRET).verify(request.body, headers) == json.loads(body)
        assert headers["webhook-id"] == headers["idempotency-key"] == "stripe:evt_1"
        assert headers["content-type"] == "application/json"
        assert (headers["oncehook-source"], headers["oncehook-event-id"]) == ("stripe", "evt_1")
        assert (headers["oncehook-event-type"], headers["oncehook-attempt"]) == ("invoice.paid", "1")
        assert "stripe-signature" not in headers
    handler = f"forward to http://127.0.0.1:{receiver.port}"
    assert run_sql(database, "SELECT status, outcome, handler FROM webhook_receipts") == [
        ("processed", "processed", handler)
    ]


async def test_each_forward_secret_signs_and_without_one_the_request_is_not_signed(
    forward_config: Callable[..., Path],
) -> None:
    for setting, verified in ((f'forward_secret = ["{OTHER}", "{SECRET}"]', [SECRET, OTHER]), ("", [])):
        async with receiving() as receiver, running_inbox(forward_config(receiver.url, setting)) as inbox:
            await claim(inbox, f"evt_{len(verified)}")
            inbox._runtime.start_worker()
            await eventually(lambda: bool(receiver.requests))
            (request,) = receiver.requests
            for secret in verified:
                standardwebhooks.Webhook(secret).verify(request.body, request.headers)
            assert ("webhook-signature" in request.headers) == bool(verified)


async def test_webhook_id_and_idempotency_key_stay_the_same_at_every_attempt_and_replay(
    forward_config: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    async with receiving(http_response(500), http_response(502), http_response(200)) as receiver:
        async with running_inbox(forward_config(receiver.url, f'forward_secret = "{SECRET}"')) as inbox:
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "processed", 1))
            await replay(inbox._runtime.store, Selection(Filter(event_id="evt_1")), actor="test")
            await eventually(lambda: len(receiver.requests) == 4)
            await eventually(receipts_are(database, "processed", 1))
        attempts = [(r.headers["oncehook-attempt"], r.headers["oncehook-replays"]) for r in receiver.requests]
        assert attempts == [("1", "0"), ("2", "0"), ("3", "0"), ("1", "1")]
        for name in ("webhook-id", "idempotency-key"):
            assert {request.headers[name] for request in receiver.requests} == {"stripe:evt_1"}
        for request in receiver.requests:
            standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
    failed = [
        (n, "retrying", f"UnexpectedStatus: http://127.0.0.1:{receiver.port} answered {s}")
        for n, s in ((1, 500), (2, 502))
    ]
    assert run_sql(database, HISTORY) == [*failed, (3, "processed", None), (1, "processed", None)]


def test_header_text_is_percent_encoded_ascii() -> None:
    assert header_text("é %\r\n") == "%C3%A9 %25%0D%0A"


async def test_hostile_ids_types_and_headers_cannot_inject_a_header(
    forward_config: Callable[..., Path], database: str
) -> None:
    stored = {
        "content-type": "text/plain\r\nX-Evil: 1",
        "x-a": "fine",
        "x-fold": "a\r\n b",
        "x-nul": "a\x00b",
        "x bad": "1",
        "x-\r\nevil": "1",
        "authorization": "Bearer hidden",
        "cookie": "hidden",
        "connection": "x-a",
        "transfer-encoding": "chunked",
        "webhook-id": "forged",
        "idempotency-key": "forged",
        "oncehook-source": "forged",
        "x-forwarded-for": "10.0.0.1",
        "host": "evil.example",
    }
    odd = make_claim("é\u2028%.", type="a\x1b[0m", headers=json.dumps(stored))
    async with receiving() as receiver, running_inbox(forward_config(receiver.url, 'forward_headers = ["*"]')) as inbox:
        await inbox._runtime.store.claims.insert([odd])
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))
        (request,) = receiver.requests
    assert request.headers["x-a"] == "fine"
    assert request.headers["content-type"] == "application/octet-stream"
    assert request.headers["oncehook-event-id"] == "%C3%A9%E2%80%A8%25."
    assert request.headers["oncehook-event-type"] == "a%1B[0m"
    assert request.headers["oncehook-source"] == "stripe"
    assert request.headers["webhook-id"].startswith("stripe:sha256-")
    assert not {"x-evil", "x-fold", "x-nul", "authorization", "cookie", "x-forwarded-for"} & set(request.headers)
    assert b"hidden" not in request.head.partition(b"\r\n")[2] and b"forged" not in request.head
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"


async def test_headers_that_identify_the_event_are_forwarded_and_others_only_if_configured(
    forward_config: Callable[..., Path], database: str
) -> None:
    async with receiving() as receiver:
        for number, setting in enumerate(("", 'forward_headers = ["X-GitHub-*", "x-mine"]')):
            config = forward_config(receiver.url, setting, source="github", secret="github-secret")
            async with running_inbox(config) as inbox:
                body = b'{"ref":"main"}'
                headers = github_headers(body, f"delivery-{number}")
                more = {"X-Mine": "1", "X-GitHub-Hook-ID": "7", "traceparent": "00-1-2-01", "Authorization": "hidden"}
                assert (await post(inbox, "github", body, headers | more)).status == 202
                inbox._runtime.start_worker()
                await eventually(receipts_are(database, "processed", number + 1))
    first, second = (request.headers for request in receiver.requests)
    assert (first["x-github-event"], first["x-github-delivery"]) == ("push", "delivery-0")
    assert first["traceparent"] == "00-1-2-01"
    assert not {"x-mine", "x-github-hook-id", "authorization", "x-hub-signature-256"} & set(first)
    assert (second["x-github-event"], second["x-github-hook-id"], second["x-mine"]) == ("push", "7", "1")
    assert not {"traceparent", "authorization", "x-hub-signature-256"} & set(second)


async def test_no_transaction_is_open_while_the_target_is_called(
    forward_config: Callable[..., Path], database: str
) -> None:
    go = asyncio.Event()
    async with (
        receiving(wait_for(go, http_response(200))) as receiver,
        running_inbox(forward_config(receiver.url)) as inbox,
    ):
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(lambda: receiver.under_way == 1)
        if database.startswith("sqlite"):
            other = sqlite3.connect(database.removeprefix("sqlite:///"), timeout=0.5, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            other.close()
        else:
            idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
            assert run_sql(database, idle) == [(0,)], "no transaction may be open during the call"
        go.set()
        await eventually(receipts_are(database, "processed", 1))


async def test_inline_forward_finishes_before_the_sender_gets_its_response(
    forward_config: Callable[..., Path], database: str
) -> None:
    answers = [http_response(200), http_response(500), *[http_response(500)] * 4]
    async with receiving(*answers) as receiver, running_inbox(forward_config(receiver.url, 'mode = "inline"')) as inbox:
        inbox._runtime.start_worker()
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).outcome == (200, "processed")
        for number in range(5):
            assert (await deliver(inbox, "stripe", stripe_body(f"evt_2{number}"))).outcome == (500, "handler_failed")
        # The circuit breaker is open now: the target is not called, and the sender has to retry.
        assert (await deliver(inbox, "stripe", stripe_body("evt_3"))).outcome == (500, "handler_failed")
        assert len(receiver.requests) == 6
    assert run_sql(database, "SELECT status, attempts FROM webhook_receipts WHERE event_id = 'evt_3'") == [
        ("retrying", 1)
    ]
