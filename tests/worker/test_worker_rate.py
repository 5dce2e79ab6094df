"""A worker with a rate: it starts attempts at most as fast as the rate, and waiting uses no attempt."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.worker.worker import Worker
from tests.support.events import Rows
from tests.support.waiting import eventually, stays_true
from tests.support.work import claim, receipts_are

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def limited(inbox: Inbox, rate: float, *, concurrency: int = 16) -> AsyncIterator[Worker]:
    """A running worker with a rate, in addition to the other workers of an inbox."""
    runtime = inbox._runtime
    worker = Worker(runtime.store, runtime.start_processor(), rate=rate, poll=0.05, concurrency=concurrency)
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def record_starts(inbox: Inbox, *, batch: int | None = None) -> list[float]:
    """Register a handler for the events of Stripe. Returns the time of the start of each event."""
    starts: list[float] = []

    if batch is None:

        @inbox.on("stripe", "*")
        async def handle(event: Event) -> None:
            starts.append(time.monotonic())

    else:

        @inbox.on("stripe", "*", batch=batch)
        async def handle_batch(events: list[Event]) -> None:
            starts.extend([time.monotonic()] * len(events))

    return starts


def most_in_a_second(starts: list[float]) -> int:
    return max(sum(start <= other < start + 1 for other in starts) for start in starts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [None, 10])
async def test_events_start_no_faster_than_the_rate_and_a_burst(inbox: Inbox, rows: Rows, batch: int | None) -> None:
    starts = record_starts(inbox, batch=batch)
    await claim(inbox, *(f"evt_{n:02}" for n in range(30)))
    async with limited(inbox, 10.0):
        await eventually(receipts_are(rows, "processed", 30), "all events are processed")
    assert len(starts) == 30
    seconds = starts[-1] - starts[0]  # a busy machine may delay the first start, or the last
    assert 2.2 <= seconds <= 6, f"30 events at 10/s took {seconds:.2f} s instead of 2.8 after a burst of 2"
    assert most_in_a_second(starts) <= 10 + 2 + 3  # the rate, the burst, and starts that were delayed
    assert rows("SELECT DISTINCT attempts, crashes FROM webhook_receipts") == [(1, 0)]


async def test_waiting_for_a_token_holds_no_lease_and_uses_no_attempt(inbox: Inbox, rows: Rows) -> None:
    starts = record_starts(inbox)
    await claim(inbox, *(f"evt_{n}" for n in range(5)))
    async with limited(inbox, 1 / 3600):
        await eventually(receipts_are(rows, "processed", 1), "the only token is used")
        states = "SELECT status, attempts, next_attempt_at FROM webhook_receipts WHERE status <> 'processed'"
        assert rows(states) == [("received", 0, None)] * 4
    assert len(starts) == 1
    assert rows(states) == [("received", 0, None)] * 4


async def test_retry_takes_a_token_too(inbox: Inbox, rows: Rows) -> None:
    attempts: list[int] = []

    @inbox.on("stripe", "*", retry=Retry(attempts=3, first=0.0))
    async def handle(event: Event) -> None:
        attempts.append(event.attempt)
        raise ConnectionError("down")

    await claim(inbox, "evt_1")
    async with limited(inbox, 1 / 3600):
        await eventually(receipts_are(rows, "retrying", 1), "the first attempt failed")
        await stays_true(lambda: attempts == [1], "the retry is due, but there is no token")
    rows("UPDATE webhook_rates SET tokens = 1")
    async with limited(inbox, 1 / 3600):
        await eventually(lambda: attempts == [1, 2], "the retry takes the new token")
        await stays_true(lambda: attempts == [1, 2], "there is no further token")


async def test_slow_handlers_do_not_start_together_when_they_end(inbox: Inbox, rows: Rows) -> None:
    """Nothing is leased ahead: a token is taken when a slot is free, not before."""
    running, most = 0, 0
    go = asyncio.Event()

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    await claim(inbox, *(f"evt_{n:02}" for n in range(20)))
    async with limited(inbox, 1000.0, concurrency=2) as worker:
        await eventually(lambda: running == 2, "both slots are used")
        assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processing'") == [(2,)]
        assert not worker._ready
        go.set()
        await eventually(receipts_are(rows, "processed", 20))
    assert most == 2


async def test_unused_tokens_go_back_to_the_bucket(inbox: Inbox, rows: Rows) -> None:
    record_starts(inbox)
    async with limited(inbox, 100.0):
        await claim(inbox, "evt_1")
        await eventually(receipts_are(rows, "processed", 1))
        await eventually(lambda: rows("SELECT tokens > 9 FROM webhook_rates")[0][0], "only one token was used")


async def test_crashed_receipt_takes_a_token_and_runs_in_isolation(inbox: Inbox, rows: Rows) -> None:
    starts = record_starts(inbox)
    await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET crashes = 1")
    async with limited(inbox, 10.0):
        await eventually(receipts_are(rows, "processed", 1), "the quarantined receipt is processed")
    assert len(starts) == 1 and rows("SELECT tokens < 2 FROM webhook_rates")[0][0]


async def test_worker_without_a_rate_uses_no_bucket(inbox: Inbox, rows: Rows) -> None:
    record_starts(inbox)
    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows("SELECT count(*) FROM webhook_rates") == [(0,)]
