"""Receipts whose lease has expired are rescued, and become dead letters after their attempts."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from oncehook import Event, Inbox, Retry
from oncehook.observability.metrics import TALLY
from oncehook.store.postgres.session import session_name
from oncehook.worker import rescue as rescue_module
from oncehook.worker.rescue import SESSION_SCANS, CrashedWorkers, keep_rescuing, rescue
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import STATES, claim

pytestmark = pytest.mark.anyio


async def test_an_expired_lease_counts_as_an_attempt_until_the_event_is_a_dead_letter(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=2, first=0, most=0))
    async def paid(event: Event) -> None: ...

    await claim(inbox, "evt_1", "evt_2")
    for crash in (1, 2):
        leased = await inbox._runtime.store.leases.take(1, 0, "gone", rescued=crash > 1)
        assert [leased_receipt.event_id for leased_receipt in leased] == ["evt_1"]
        await eventually(lambda: bool(rows("SELECT 1 FROM webhook_receipts WHERE status = 'processing'")))
        rescued = 0
        while not rescued:  # a lease of zero seconds expires with the next tick of the database's clock
            rescued = await rescue(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources)
    states = [row[:4] for row in rows(STATES)]
    assert states == [("evt_1", "failed", 2, "crashed"), ("evt_2", "received", 0, None)]
    logged = [(line["event"], line["event_id"], line["attempt"]) for line in lines()]
    assert logged == [("lease_expired", "evt_1", 1), ("lease_expired", "evt_1", 2), ("dead_letter", "evt_1", 2)]


def count_attempts(outcome: str) -> float:
    return TALLY.counters["oncehook_processed_total", "stripe", "main", outcome]


async def test_a_crash_that_makes_a_dead_letter_is_counted_as_a_failure(inbox: Inbox, rows: Rows) -> None:
    """Alerts on dead letters add up the outcome `failed`, whichever way the last attempt ended."""

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=2, first=0, most=0))
    async def paid(event: Event) -> None: ...

    runtime, counts = inbox._runtime, []
    crashed, failed = count_attempts("crashed"), count_attempts("failed")
    await claim(inbox, "evt_1")
    for crash in (1, 2):
        assert len(await runtime.store.leases.take(1, 30, "gone", rescued=crash > 1)) == 1
        rows(EXPIRED)
        assert await rescue(runtime.store, runtime.handlers, runtime.sources) == 1
        counts.append((count_attempts("crashed") - crashed, count_attempts("failed") - failed))
    assert rows("SELECT status FROM webhook_receipts") == [("failed",)]
    assert counts == [(1, 0), (1, 1)]


EXPIRED = "UPDATE webhook_receipts SET lease_until = '2026-01-01T00:00:00.000000Z'"


async def test_a_receipt_is_left_to_the_process_that_has_its_handler(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    await inbox._runtime.store.leases.take(1, 30, "gone")
    rows(EXPIRED)
    runtime = inbox._runtime
    assert await rescue(runtime.store, runtime.handlers, runtime.sources, lambda source, type_, consumer: True) == 0
    assert rows("SELECT status FROM webhook_receipts") == [("processing",)]
    assert await rescue(runtime.store, runtime.handlers, runtime.sources) == 1


async def test_receipts_that_are_left_to_other_processes_do_not_hide_those_behind_them(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue_module, "PAGE", 2)
    await claim(inbox, "evt_1", "evt_2", "evt_3", type="charge.failed")
    await claim(inbox, "evt_4")
    await inbox._runtime.store.leases.take(4, 30, "gone")
    rows(EXPIRED)
    runtime = inbox._runtime

    def elsewhere(source: str, type_: str, consumer: str) -> bool:
        return type_ == "charge.failed"

    assert await rescue(runtime.store, runtime.handlers, runtime.sources, elsewhere) == 1
    assert rows("SELECT event_id FROM webhook_receipts WHERE status = 'retrying'") == [("evt_4",)]


async def test_a_receipt_that_no_process_handles_waits_however_many_attempts_it_had(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    await inbox._runtime.store.leases.take(1, 30, "gone")
    rows("UPDATE webhook_receipts SET attempts = 1000, lease_until = '2026-01-01T00:00:00.000000Z'")
    runtime = inbox._runtime
    assert await rescue(runtime.store, runtime.handlers, runtime.sources) == 1
    assert rows("SELECT status, outcome FROM webhook_receipts") == [("retrying", "crashed")]


async def test_a_live_lease_is_not_rescued(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    await inbox._runtime.store.leases.take(1, 30, "alive")
    runtime = inbox._runtime
    assert await rescue(runtime.store, runtime.handlers, runtime.sources) == 0
    assert rows("SELECT status FROM webhook_receipts") == [("processing",)]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_session_of_a_crashed_worker_that_was_just_in_use_is_ended_by_a_later_scan(
    inbox: Inbox, database: str, rows: Rows
) -> None:
    """Its transaction holds locks. The first scan leaves a session alone that was in use in the last second."""
    await claim(inbox, "evt_1")
    await inbox._runtime.store.leases.take(1, 30, "gone")
    rows(EXPIRED)
    runtime = inbox._runtime
    with psycopg.connect(database, application_name=session_name("gone")) as session:
        session.execute("SELECT 1")
        scans = asyncio.create_task(keep_rescuing(runtime.store, runtime.handlers, runtime.sources, 0.2))
        open_ = f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{session_name('gone')}'"
        try:
            await eventually(lambda: not rows(open_), "a later scan ends the session")
        finally:
            scans.cancel()
            await asyncio.gather(scans, return_exceptions=True)
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            session.execute("SELECT 1")


async def test_sessions_of_a_crashed_worker_are_ended_for_a_limited_number_of_scans(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that fails: then the scan still has its other tasks."""
    calls: list[tuple[str, float]] = []

    async def fail(worker: str, begun_before: float) -> int:
        calls.append((worker, begun_before))
        raise PermissionError("pg_terminate_backend")

    monkeypatch.setattr(inbox._runtime.store.leases, "end_sessions", fail)
    clock = ManualClock()
    crashed = CrashedWorkers(inbox._runtime.store, clock)
    crashed.add("gone")
    for _ in range(SESSION_SCANS):
        clock.advance(10)
        with pytest.raises(PermissionError):
            await crashed.end_sessions()
    await crashed.end_sessions()
    assert calls == [("gone", 10.0 * scan) for scan in range(1, SESSION_SCANS + 1)]
