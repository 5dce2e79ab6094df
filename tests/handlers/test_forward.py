"""A source's `forward`, on both databases, to real servers that fail, stall, redirect and close early."""

import asyncio
import base64
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks

from oncehook import ConfigurationError, Event, Inbox, Retry
from oncehook.cli.serve import announce, listen
from oncehook.concurrency.clock import Clock
from oncehook.handlers import forward
from oncehook.handlers.event import make_key
from oncehook.handlers.forward import header_text
from oncehook.http_client import circuit_breaker as target
from oncehook.http_client.exchange import Response
from oncehook.http_client.outcome import LONGEST_WAIT, retry_after
from oncehook.model.receipt import Filter
from oncehook.model.retry import Postpone
from oncehook.operations.rehearse import rehearse
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import deliver, post
from tests.support.events import github_headers, make_claim, stripe_body
from tests.support.http_target import (
    Answering,
    close_after,
    drip_after,
    endless,
    receiving,
    said,
    stall_after,
    wait_for,
)
from tests.support.serve import Process
from tests.support.servers import ask
from tests.support.tls_server import Canary
from tests.support.waiting import eventually
from tests.support.work import HISTORY, STATES, claim, receipts_are

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"a secret of this test, 32 bytes.").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret that is rotated in").decode()
QUICK = Retry(attempts=3, first=0.01, most=0.02)


@pytest.fixture
def file(tmp_path: Path, database: str) -> Callable[..., Path]:
    """A configuration whose Stripe source forwards."""

    def write(url: str, *lines: str, source: str = "stripe", secret: str = "whsec_test") -> Path:
        config = tmp_path / "oncehook.toml"
        told = [
            f'database = "{database}"',
            'lease = "1s"',
            'poll = "50ms"',
            f"[sources.{source}]",
            f'secrets = ["{secret}"]',
        ]
        config.write_text("\n".join([*told, f'forward = "{url}"', *lines]) + "\n")
        return config

    return write


@asynccontextmanager
async def forwarding(config: Path) -> AsyncIterator[Inbox]:
    inbox = Inbox(config=str(config), worker=False)
    async with inbox.lifespan():
        yield inbox


def due_in(database: str) -> float:
    """Seconds until the one receipt is tried again, by the database's clock."""
    if database.startswith("sqlite"):
        asked = "SELECT (julianday(next_attempt_at) - julianday('now')) * 86400 FROM webhook_receipts"
    else:
        asked = "SELECT extract(epoch FROM next_attempt_at - now())::float FROM webhook_receipts"
    return float(ask(database, asked)[0][0])


# -- what is sent ---------------------------------------------------------------------------------------------------


async def test_the_body_goes_on_as_it_was_received_and_2xx_is_processed(
    file: Callable[..., Path], database: str
) -> None:
    body = b'{ "id" : "evt_1", "type": "invoice.paid",  "data": {"object": {"id": "in_1"}}, "\xc3\xa9": 1.10 }\n'
    async with (
        receiving(said(204)) as receiver,
        forwarding(file(receiver.url, f'forward_secret = "{SECRET}"')) as inbox,
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
    assert ask(database, "SELECT status, outcome, handler FROM webhook_receipts") == [
        ("processed", "processed", handler)
    ]


async def test_while_secrets_rotate_each_signs_and_without_one_nothing_is_signed(file: Callable[..., Path]) -> None:
    for setting, verified in ((f'forward_secret = ["{OTHER}", "{SECRET}"]', [SECRET, OTHER]), ("", [])):
        async with receiving() as receiver, forwarding(file(receiver.url, setting)) as inbox:
            await claim(inbox, f"evt_{len(verified)}")
            inbox._runtime.start_worker()
            await eventually(lambda: bool(receiver.requests))
            (request,) = receiver.requests
            for secret in verified:
                standardwebhooks.Webhook(secret).verify(request.body, request.headers)
            assert ("webhook-signature" in request.headers) == bool(verified)


async def test_the_id_and_the_key_are_the_same_at_every_attempt_and_replay(
    file: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    async with receiving(said(500), said(502), said(200)) as receiver:
        async with forwarding(file(receiver.url, f'forward_secret = "{SECRET}"')) as inbox:
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "processed", 1))
            await replay(inbox._runtime.store, Selection(Filter(event_id="evt_1")), actor="test")
            await eventually(lambda: len(receiver.requests) == 4)
            await eventually(receipts_are(database, "processed", 1))
        told = [(r.headers["oncehook-attempt"], r.headers["oncehook-replays"]) for r in receiver.requests]
        assert told == [("1", "0"), ("2", "0"), ("3", "0"), ("1", "1")]
        for name in ("webhook-id", "idempotency-key"):
            assert {request.headers[name] for request in receiver.requests} == {"stripe:evt_1"}
        for request in receiver.requests:
            standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
    failed = [
        (n, "retrying", f"UnexpectedStatus: http://127.0.0.1:{receiver.port} answered {s}")
        for n, s in ((1, 500), (2, 502))
    ]
    assert ask(database, HISTORY) == [*failed, (3, "processed", None), (1, "processed", None)]


KEYS = {
    "evt_1": "a:evt_1",
    "sha256:" + "0" * 64: "a:sha256:" + "0" * 64,
    "x" * 191: "a:" + "x" * 191,
}


def test_a_key_is_safe_in_a_header_and_two_events_never_share_one() -> None:
    assert {event_id: make_key("a", event_id) for event_id in KEYS} == KEYS
    odd = ["a.b", "é", "a b", "a\r\nb", "\u2028", "x" * 192, "a,b", '"', "\ud800", "a%20b", ""]
    keys = [make_key("a", event_id) for event_id in odd]
    assert all(key.startswith("a:sha256-") and len(key) == 73 for key in keys)
    everything = [make_key(source, one) for source in ("a", "b", "a-b") for one in (*KEYS, *odd)]
    assert len(set(everything)) == len(everything)
    assert header_text("é %\r\n") == "%C3%A9 %25%0D%0A"


async def test_hostile_ids_types_and_headers_stay_one_line(file: Callable[..., Path], database: str) -> None:
    kept = {
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
    odd = make_claim("é\u2028%.", type="a\x1b[0m", headers=json.dumps(kept))
    async with receiving() as receiver, forwarding(file(receiver.url, 'forward_headers = ["*"]')) as inbox:
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


async def test_the_headers_that_name_the_event_go_on_and_others_if_they_are_chosen(
    file: Callable[..., Path], database: str
) -> None:
    async with receiving() as receiver:
        for number, setting in enumerate(("", 'forward_headers = ["X-GitHub-*", "x-mine"]')):
            config = file(receiver.url, setting, source="github", secret="github-secret")
            async with forwarding(config) as inbox:
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


# -- what comes of it -----------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Answering, str]] = {
    "an error": (said(500, body=b"the payload, quoted: in_1"), "UnexpectedStatus: {} answered 500"),
    "not found": (said(404), "UnexpectedStatus: {} answered 404"),
    "busy, without a time": (said(503), "UnexpectedStatus: {} answered 503"),
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


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_target_that_fails_is_tried_again_and_then_takes_it(
    fault: str, file: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    behaviour, error = FAULTS[fault]
    async with (
        receiving(behaviour, said(200)) as receiver,
        forwarding(file(receiver.url, 'forward_timeout = "300ms"')) as inbox,
    ):
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))
    told = error.format(f"http://127.0.0.1:{receiver.port}")
    assert ask(database, HISTORY) == [(1, "retrying", told), (2, "processed", None)]
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


async def test_after_its_attempts_it_is_a_dead_letter(
    file: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "POLICY", QUICK)
    async with receiving(said(500)) as receiver, forwarding(file(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        assert len(receiver.requests) == 3


async def test_a_redirect_is_not_followed_and_says_what_to_do(file: Callable[..., Path], database: str) -> None:
    with Canary() as canary:
        async with (
            receiving(said(307, f"Location: http://127.0.0.1:{canary.port}/")) as receiver,
            forwarding(file(receiver.url)) as inbox,
        ):
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "retrying", 1))
    assert canary.connections == 0
    (state,) = ask(database, STATES)
    assert state[4].endswith("answered 307: redirects are not followed, configure the final address")


async def test_410_stops_at_once(file: Callable[..., Path], database: str) -> None:
    async with receiving(said(410)) as receiver, forwarding(file(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        assert len(receiver.requests) == 1
    gone = f"Fail: http://127.0.0.1:{receiver.port} answered 410 Gone, so this event is not retried"
    assert ask(database, STATES) == [("evt_1", "failed", 1, "failed", gone)]


async def test_an_answer_without_end_is_a_success_if_its_status_is(file: Callable[..., Path], database: str) -> None:
    async with receiving(endless) as receiver, forwarding(file(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 1))


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_honoured_and_the_others_wait_too_without_using_an_attempt(
    status: int, file: Callable[..., Path], database: str
) -> None:
    async with receiving(said(status, "Retry-After: 120")) as receiver, forwarding(file(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "retrying", 1))
        assert 110 < due_in(database) < 140
        assert inbox._runtime.breakers[f"http://127.0.0.1:{receiver.port}"].state == "open"
        await claim(inbox, "evt_2")
        assert inbox._runtime.worker is not None
        inbox._runtime.worker.wake()
        later = "SELECT count(*) FROM webhook_receipts WHERE event_id = 'evt_2' AND next_attempt_at IS NOT NULL"
        await eventually(lambda: ask(database, later) == [(1,)])
        assert [row[:3] for row in ask(database, STATES)] == [("evt_1", "retrying", 1), ("evt_2", "received", 0)]
        assert len(receiver.requests) == 1


NOW = 1_763_200_000.0
WAITS: list[tuple[int, str | None, float | None]] = [
    (429, "0", 1.0),
    (429, "7", 7.0),
    (503, " 60 ", 60.0),
    (503, "999999999", LONGEST_WAIT),
    (503, formatdate(NOW + 90, usegmt=True), 90.0),
    (503, formatdate(NOW - 90, usegmt=True), 1.0),
    (503, formatdate(NOW + 9e6, usegmt=True), LONGEST_WAIT),
    *[
        (503, odd, None)
        for odd in (None, "", "-1", "1.5", "soon", "9" * 30, "١٢", "1e3", "Mon, 99 Foo 99999 99:99:99 GMT")
    ],
    (500, "7", None),
    (200, "7", None),
]


@pytest.mark.parametrize(("status", "value", "wait"), WAITS)
def test_a_retry_after_is_seconds_or_a_date_and_has_a_limit(status: int, value: str | None, wait: float | None) -> None:
    assert retry_after(Response(status, {} if value is None else {"retry-after": value}, b""), NOW) == wait


# -- a target that is not well --------------------------------------------------------------------------------------


def soon(least: float, most: float) -> float:
    """What was put back comes back ten times as early."""
    return random.uniform(least, most) / 10


async def test_after_failures_in_a_row_a_target_is_left_alone_until_a_probe_succeeds(
    file: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(target, "FIRST_PAUSE", 0.5)
    monkeypatch.setattr(target, "_jitter", soon)
    monkeypatch.setattr(forward, "POLICY", Retry(attempts=100, first=0.01, most=0.02))
    caplog.set_level("INFO", "oncehook")
    async with receiving(said(500)) as receiver, forwarding(file(receiver.url, "forward_concurrency = 1")) as inbox:
        await claim(inbox, *(f"evt_{n:02d}" for n in range(30)))
        inbox._runtime.start_worker()
        at = inbox._runtime.breakers[f"http://127.0.0.1:{receiver.port}"]
        await eventually(lambda: at.state == "open")
        assert len(receiver.requests) == target.FAILURES
        receiver.answers[:] = [said(200)]
        await eventually(receipts_are(database, "processed", 30), within=60)
        assert at.state == "closed"
    assert ask(database, "SELECT count(*) FROM webhook_attempts WHERE outcome <> 'processed'") == [(target.FAILURES,)]
    assert ask(database, "SELECT sum(attempts) FROM webhook_receipts") == [(30 + target.FAILURES,)]
    events = [str(vars(record).get("event")) for record in caplog.records]
    lines = [event for event in events if event.startswith("circuit_")]
    assert lines == ["circuit_opened", "circuit_closed"]


async def test_a_probe_is_alone_and_its_failure_makes_the_next_pause_longer() -> None:
    class Hands(Clock):
        at = 1000.0

        def monotonic(self) -> float:
            return self.at

    clock = Hands()
    it = target.CircuitBreaker("http://x", 2, clock)
    for _ in range(target.FAILURES):
        async with it.call() as call:
            call.failed()
    with pytest.raises(Postpone) as refused:
        async with it.call():
            pass
    assert it.state == "open" and refused.value.after >= target.FIRST_PAUSE
    for pause in (target.FIRST_PAUSE, 2 * target.FIRST_PAUSE, 4 * target.FIRST_PAUSE):
        clock.at += pause - 0.01
        assert it.state == "open"
        clock.at += 0.02
        async with it.call() as probe:
            with pytest.raises(Postpone):
                async with it.call():
                    pass
            assert it.state == "half-open"
            probe.failed()
    clock.at += target.MOST_PAUSE
    with pytest.raises(asyncio.CancelledError):
        async with it.call():
            raise asyncio.CancelledError  # a probe that comes to nothing leaves the place to another
    async with it.call() as probe:
        probe.succeeded()
    assert (it.state, it.failures) == ("closed", 0)
    async with it.call() as call:
        call.failed()
    assert it.state == "closed"


async def test_so_many_are_under_way_at_once_and_a_slow_target_holds_up_no_other_source(
    file: Callable[..., Path], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "PATIENCE", 0.2)
    monkeypatch.setattr(target, "_jitter", soon)
    go = asyncio.Event()
    async with (
        receiving(wait_for(go, said(200))) as receiver,
        forwarding(file(receiver.url, "forward_concurrency = 3")) as inbox,
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
    assert ask(database, "SELECT count(*) FROM webhook_attempts") == [(61,)]


async def test_no_transaction_is_open_while_the_target_is_called(file: Callable[..., Path], database: str) -> None:
    go = asyncio.Event()
    async with receiving(wait_for(go, said(200))) as receiver, forwarding(file(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(lambda: receiver.under_way == 1)
        if database.startswith("sqlite"):
            other = sqlite3.connect(database.removeprefix("sqlite:///"), timeout=0.5, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            other.close()
        else:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
            assert ask(database, asked) == [(0,)]
        go.set()
        await eventually(receipts_are(database, "processed", 1))


# -- inline ---------------------------------------------------------------------------------------------------------


async def test_inline_the_target_answers_before_the_sender_gets_an_answer(
    file: Callable[..., Path], database: str
) -> None:
    answers = [said(200), said(500), *[said(500)] * 4]
    async with receiving(*answers) as receiver, forwarding(file(receiver.url, 'mode = "inline"')) as inbox:
        inbox._runtime.start_worker()
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).outcome == (200, "processed")
        for number in range(5):
            assert (await deliver(inbox, "stripe", stripe_body(f"evt_2{number}"))).outcome == (500, "handler_failed")
        # Paused now: nobody is called, and the sender is asked to come again.
        assert (await deliver(inbox, "stripe", stripe_body("evt_3"))).outcome == (500, "handler_failed")
        assert len(receiver.requests) == 6
    assert ask(database, "SELECT status, attempts FROM webhook_receipts WHERE event_id = 'evt_3'") == [("retrying", 1)]


# -- the worker dies ------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_killed_while_it_forwards_costs_nothing_but_a_second_delivery(
    file: Callable[..., Path], database: str
) -> None:
    never = asyncio.Event()
    async with receiving(wait_for(never, said(200)), said(200)) as receiver:
        config = file(receiver.url, f'forward_secret = "{SECRET}"')
        async with forwarding(config) as inbox:
            await inbox._runtime.store.claims.insert([make_claim("evt_1", body=b'{"id":"evt_1"}')])
        first = await asyncio.to_thread(Process, config)
        try:
            await eventually(lambda: len(receiver.requests) == 1, within=30)
        finally:
            await asyncio.to_thread(first.kill)
        second = await asyncio.to_thread(Process, config)
        try:
            await eventually(receipts_are(database, "retrying", 1), within=60)
            ask(database, "UPDATE webhook_receipts SET next_attempt_at = NULL")  # a pause follows a crash
            await eventually(receipts_are(database, "processed", 1), within=60)
        finally:
            assert await asyncio.to_thread(second.end) == 0
    one, two = receiver.requests
    assert one.headers["webhook-id"] == two.headers["webhook-id"] == "stripe:evt_1"
    assert one.headers["idempotency-key"] == two.headers["idempotency-key"]
    assert one.body == two.body == b'{"id":"evt_1"}'
    assert (one.headers["oncehook-attempt"], two.headers["oncehook-attempt"]) == ("1", "2")
    standardwebhooks.Webhook(SECRET).verify(two.body, two.headers)
    assert [row[:2] for row in ask(database, HISTORY)] == [(1, "crashed"), (2, "processed")]


# -- configuration --------------------------------------------------------------------------------------------------


async def test_a_target_that_code_names_must_be_public(make_inbox: Callable[..., Inbox], database: str) -> None:
    with Canary() as canary:
        inbox = make_inbox(worker=False)
        inbox.source("stripe", secrets=["whsec_test"], forward=f"http://localhost:{canary.port}/")
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "retrying", 1))
    assert canary.connections == 0
    (state,) = ask(database, STATES)
    assert state[4].startswith("SendRefused: localhost has the address ") and "configuration file" in state[4]


async def test_a_rehearsal_sends_nothing(file: Callable[..., Path]) -> None:
    async with receiving() as receiver, forwarding(file(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
        rehearsal = await rehearse(inbox._runtime.store, inbox._runtime.handlers, receipt)
        assert (rehearsal.handler, rehearsal.error) == (f"forward to http://127.0.0.1:{receiver.port}", None)
        assert receiver.connections == 0


def test_exactly_one_handler_in_whatever_order_they_are_given(tmp_path: Path) -> None:
    def handle(event: Event) -> None: ...

    for pattern in ("push", "*"):
        sentence = r"handle would never be called: sources\.github\.forward handles every event"
        first = Inbox(f"sqlite:///{tmp_path}/a.db")
        first.source("github", secrets=["x"], forward="https://example.com/")
        with pytest.raises(ConfigurationError, match=sentence):
            first.on("github", pattern)(handle)
        second = Inbox(f"sqlite:///{tmp_path}/b.db")
        second.on("github", pattern)(handle)
        with pytest.raises(ConfigurationError, match=sentence):
            second.source("github", secrets=["x"], forward="https://example.com/")


HIDDEN = "hidden-value"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"forward": f"http://user:{HIDDEN}@host/"}, "sources.github.forward is not usable: expected an address"),
    ({"forward": "localhost:3000"}, "sources.github.forward is not usable: expected an address"),
    ({"forward": ""}, "sources.github.forward is not usable: expected a string"),
    ({"forward_secret": HIDDEN}, "sources.github.forward_secret cannot sign: it is not base64"),
    ({"forward_secret": "whsec_"}, "sources.github.forward_secret cannot sign: it is empty"),
    ({"forward_secret": f"whsk_{HIDDEN}"}, "sources.github.forward_secret cannot sign: it is not a key"),
    ({"forward_secret": 7}, "sources.github.forward_secret is not usable"),
    ({"forward_concurrency": 0}, "sources.github.forward_concurrency is 0"),
    ({"forward_timeout": "soon"}, "expected a duration"),
    ({"forward_headers": ["X-A", "Authorization"]}, "lists Authorization, which is never passed on"),
    ({"forward_headers": ["webhook-id"]}, "lists webhook-id, which is never passed on"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG)
def test_what_cannot_work_is_said_at_start_and_no_secret_with_it(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ConfigurationError) as caught:
        inbox.source("github", secrets=["x"], **{"forward": "https://example.com/", **settings})
    assert sentence in str(caught.value)
    assert HIDDEN not in str(caught.value)


def test_where_events_go_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/a.db")
    inbox.source("github", secrets=["x"], forward=f"https://example.com/{HIDDEN}")
    inbox.source("stripe", secrets=["x"], forward="https://example.com/", forward_secret=SECRET)
    with listen("127.0.0.1", 0) as listener:
        announce(inbox._runtime, listener)
    said_ = capsys.readouterr().out
    assert "GitHub   → https://example.com, unsigned" in said_
    assert "Stripe   → https://example.com\n" in said_
    assert HIDDEN not in said_


# -- putting back, on every store -----------------------------------------------------------------------------------


async def test_what_is_put_back_is_due_later_and_has_used_no_attempt(inbox: Inbox, database: str) -> None:
    await claim(inbox, "evt_1", "evt_2")
    one, two = await inbox._runtime.store.leases.take(2, 30, "test")
    assert await inbox._runtime.store.leases.release([one.held], 60.0) == 1
    assert await inbox._runtime.store.leases.release([two.held]) == 1
    assert await inbox._runtime.store.leases.release([one.held], 0.0) == 0, "the lease was given back already"
    (again,) = await inbox._runtime.store.leases.take(2, 30, "test")
    assert (again.receipt, again.attempt) == (two.receipt, 1)
    assert ask(database, "SELECT attempts, status FROM webhook_receipts ORDER BY id") == [
        (0, "received"),
        (1, "processing"),
    ]
