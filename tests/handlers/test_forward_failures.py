"""Forwarding to targets that fail, stall, redirect, close early or ask for a pause, on both databases."""

import asyncio
import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import standardwebhooks

from oncehook import Event, Retry
from oncehook.handlers import forward
from oncehook.http_client import circuit_breaker
from tests.support.events import make_claim
from tests.support.forwarding import running_inbox
from tests.support.http_target import (
    Answering,
    close_after,
    drip_after,
    endless,
    http_response,
    receiving,
    stall_after,
    wait_for,
)
from tests.support.serve import Process
from tests.support.servers import run_sql
from tests.support.tls_server import Canary
from tests.support.waiting import eventually
from tests.support.work import HISTORY, QUICK, STATES, claim, receipts_are

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"a secret of this test, 32 bytes.").decode()


def due_in(database: str) -> float:
    """Seconds until the one receipt is tried again, by the database's clock."""
    if database.startswith("sqlite"):
        statement = "SELECT (julianday(next_attempt_at) - julianday('now')) * 86400 FROM webhook_receipts"
    else:
        statement = "SELECT extract(epoch FROM next_attempt_at - now())::float FROM webhook_receipts"
    return float(run_sql(database, statement)[0][0])


FAULTS: dict[str, tuple[Answering, str]] = {
    "an error": (http_response(500, body=b"the payload, quoted: in_1"), "UnexpectedStatus: {} answered 500"),
    "not found": (http_response(404), "UnexpectedStatus: {} answered 404"),
    "busy, without a time": (http_response(503), "UnexpectedStatus: {} answered 503"),
    "closes at once": (close_after(), "SendFailed: {} closed the connection without a response"),
    "closes early": (
        close_after(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
        "SendFailed: {} closed the connection before the response was complete",
    ),
    "stalls": (stall_after(), "SendFailed: {} did not answer within 0.3 s"),
    "stalls after its headers": (
        stall_after(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
        "SendFailed: {} did not answer within 0.3 s",
    ),
    "drips": (drip_after(b"HTTP/1.1 200 OK\r\n\r\n"), "SendFailed: {} did not answer within 0.3 s"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fault", FAULTS)
async def test_forward_is_retried_until_the_target_accepts_it(
    fault: str, forward_config: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    behavior, error = FAULTS[fault]
    async with (
        receiving(behavior, http_response(200)) as receiver,
        running_inbox(forward_config(receiver.url, 'forward_timeout = "300ms"')) as inbox,
    ):
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))
    message = error.format(f"http://127.0.0.1:{receiver.port}")
    assert run_sql(database, HISTORY) == [(1, "retrying", message), (2, "processed", None)]
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


async def test_forward_becomes_a_dead_letter_after_its_last_attempt(
    forward_config: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    async with receiving(http_response(500)) as receiver, running_inbox(forward_config(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        assert len(receiver.requests) == 3


async def test_redirect_is_not_followed_and_the_error_says_what_to_do(
    forward_config: Callable[..., Path], database: str
) -> None:
    with Canary() as canary:
        async with (
            receiving(http_response(307, f"Location: http://127.0.0.1:{canary.port}/")) as receiver,
            running_inbox(forward_config(receiver.url)) as inbox,
        ):
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "retrying", 1))
    assert canary.connections == 0
    (state,) = run_sql(database, STATES)
    assert state[4].endswith("answered 307: redirects are not followed, configure the final address")


async def test_410_makes_the_event_a_dead_letter_without_a_retry(
    forward_config: Callable[..., Path], database: str
) -> None:
    async with receiving(http_response(410)) as receiver, running_inbox(forward_config(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        assert len(receiver.requests) == 1
    gone = f"Fail: http://127.0.0.1:{receiver.port} answered 410 Gone, so this event is not retried"
    assert run_sql(database, STATES) == [("evt_1", "failed", 1, "failed", gone)]


async def test_endless_response_with_status_200_is_a_success(
    forward_config: Callable[..., Path], database: str
) -> None:
    async with receiving(endless) as receiver, running_inbox(forward_config(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_delays_the_event_and_holds_others_back_without_an_attempt(
    status: int, forward_config: Callable[..., Path], database: str
) -> None:
    async with (
        receiving(http_response(status, "Retry-After: 120")) as receiver,
        running_inbox(forward_config(receiver.url)) as inbox,
    ):
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "retrying", 1))
        assert 110 < due_in(database) < 140
        assert inbox._runtime.breakers[f"http://127.0.0.1:{receiver.port}"].state == "open"
        await claim(inbox, "evt_2")
        assert inbox._runtime.worker is not None
        inbox._runtime.worker.wake()
        later = "SELECT count(*) FROM webhook_receipts WHERE event_id = 'evt_2' AND next_attempt_at IS NOT NULL"
        await eventually(lambda: run_sql(database, later) == [(1,)])
        assert [row[:3] for row in run_sql(database, STATES)] == [("evt_1", "retrying", 1), ("evt_2", "received", 0)]
        assert len(receiver.requests) == 1


def short_jitter(least: float, most: float) -> float:
    """Released receipts are due ten times as early."""
    return random.uniform(least, most) / 10


async def test_open_circuit_breaker_stops_forwards_until_a_probe_succeeds(
    forward_config: Callable[..., Path],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(circuit_breaker, "FIRST_PAUSE", 0.5)
    monkeypatch.setattr(circuit_breaker, "_jitter", short_jitter)
    monkeypatch.setattr(forward, "POLICY", Retry(attempts=100, first=0.01, most=0.02))
    caplog.set_level("INFO", "oncehook")
    async with (
        receiving(http_response(500)) as receiver,
        running_inbox(forward_config(receiver.url, "forward_concurrency = 1")) as inbox,
    ):
        await claim(inbox, *(f"evt_{n:02d}" for n in range(30)))
        inbox._runtime.start_worker()
        breaker = inbox._runtime.breakers[f"http://127.0.0.1:{receiver.port}"]
        await eventually(lambda: breaker.state == "open")
        assert len(receiver.requests) == circuit_breaker.FAILURES
        receiver.answers[:] = [http_response(200)]
        await eventually(receipts_are(database, "processed", 30), within=60)
        assert breaker.state == "closed"
    assert run_sql(database, "SELECT count(*) FROM webhook_attempts WHERE outcome <> 'processed'") == [
        (circuit_breaker.FAILURES,)
    ]
    assert run_sql(database, "SELECT sum(attempts) FROM webhook_receipts") == [(30 + circuit_breaker.FAILURES,)]
    events = [str(vars(record).get("event")) for record in caplog.records]
    lines = [event for event in events if event.startswith("circuit_")]
    assert lines == ["circuit_opened", "circuit_closed"]


async def test_forward_concurrency_is_limited_and_a_slow_target_delays_no_other_source(
    forward_config: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "PATIENCE", 0.2)
    monkeypatch.setattr(circuit_breaker, "_jitter", short_jitter)
    go = asyncio.Event()
    async with (
        receiving(wait_for(go, http_response(200))) as receiver,
        running_inbox(forward_config(receiver.url, "forward_concurrency = 3")) as inbox,
    ):
        inbox.source("github", secrets=["x"])
        done: list[str] = []

        @inbox.on("github", "*")
        async def handle(event: Event) -> None:
            done.append(event.id)

        await claim(inbox, *(f"evt_{n:02d}" for n in range(60)))
        await claim(inbox, "quick", source="github")
        inbox._runtime.start_worker()
        await eventually(lambda: done == ["quick"], within=30)
        assert receiver.under_way <= 3 and not go.is_set()
        go.set()
        await eventually(receipts_are(database, "processed", 61), within=60)
        assert receiver.most_under_way == 3
    assert run_sql(database, "SELECT count(*) FROM webhook_attempts") == [(61,)]


@pytest.mark.sampled(1)
async def test_killed_worker_causes_a_second_request_with_the_same_key_and_no_loss(
    forward_config: Callable[..., Path], database: str
) -> None:
    never = asyncio.Event()
    async with receiving(wait_for(never, http_response(200)), http_response(200)) as receiver:
        config = forward_config(receiver.url, f'forward_secret = "{SECRET}"')
        async with running_inbox(config) as inbox:
            await inbox._runtime.store.claims.insert([make_claim("evt_1", body=b'{"id":"evt_1"}')])
        killed = await asyncio.to_thread(Process, config)
        try:
            await eventually(lambda: len(receiver.requests) == 1, within=30)
        finally:
            await asyncio.to_thread(killed.kill)
        replacement = await asyncio.to_thread(Process, config)
        try:
            await eventually(receipts_are(database, "retrying", 1), within=60)
            run_sql(database, "UPDATE webhook_receipts SET next_attempt_at = NULL")  # a pause follows a crash
            await eventually(receipts_are(database, "processed", 1), within=60)
        finally:
            assert await asyncio.to_thread(replacement.end) == 0
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "stripe:evt_1"
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body == b'{"id":"evt_1"}'
    assert (first.headers["oncehook-attempt"], second.headers["oncehook-attempt"]) == ("1", "2")
    standardwebhooks.Webhook(SECRET).verify(second.body, second.headers)
    assert [row[:2] for row in run_sql(database, HISTORY)] == [(1, "crashed"), (2, "processed")]
