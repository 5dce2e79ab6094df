"""Every statement that settles a receipt as processed writes the same row, and each attempt is recorded once.

PostgreSQL has three: for handlers without a transaction, for one event in its handler's transaction, and for the other
events of a batch. One definition for all of them would be slower, so this test compares them instead.
"""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.store import Store
from oncehook.testing import deliver, drain
from tests.support.events import Rows
from tests.support.stores import claim_and_lease, lose_lease, processed, seconds_taken

pytestmark = pytest.mark.anyio


QUICK = Retry(attempts=5, first=0.0)

COLUMNS = """
    status, outcome, attempts, version, last_error, lease_until, crashes, started_at IS NOT NULL,
    processed_at IS NOT NULL, next_attempt_at, failed_at
"""


async def test_every_settling_statement_writes_the_same_row(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    for name in ("bulk", "single", "batch"):
        inbox.source(name, provider="stripe", secrets=["whsec_test"])

    @inbox.on("bulk", "*", retry=QUICK)
    async def settle_in_bulk(event: Event) -> None:
        fail_first(event)

    @inbox.on("single", "*", retry=QUICK)
    async def settle_alone(event: Event, tx: Any) -> None:
        await tx.fetchval("SELECT 1")
        fail_first(event)

    @inbox.on("batch", "*", retry=QUICK, batch=10)
    async def settle_together(events: list[Event], tx: Any) -> None:
        await tx.fetchval("SELECT 1")
        fail_first(*events)

    def fail_first(*events: Event) -> None:
        if any(event.attempt == 1 for event in events):
            raise ConnectionError("later")

    async with inbox.lifespan():
        for name in ("bulk", "single", "batch"):
            for _ in range(3):
                assert (await deliver(inbox, name, type="invoice.paid")).status == 202
        await drain(inbox, later=True)
    written = rows(f"SELECT count(*), {COLUMNS} FROM webhook_receipts GROUP BY {COLUMNS}")
    (version,) = {row[0] for row in rows("SELECT version FROM webhook_receipts")}
    assert written == [(9, "processed", "processed", 2, version, None, None, 0, True, True, None, None)]


ATTEMPTS = """
    SELECT r.event_id, a.number, a.outcome, a.error
    FROM webhook_attempts a JOIN webhook_receipts r ON r.id = a.receipt_id ORDER BY r.event_id, a.id
"""


async def test_attempts_that_are_settled_together_are_recorded_once_each(store: Store, rows: Rows) -> None:
    done, retried, dead, lost = await claim_and_lease(store, 4)
    await lose_lease(store, lost)
    settled = [
        processed(done),
        Settled(retried.receipt, retried.lease, State.RETRYING, "retrying", after=60.0, error="E: later", seconds=30.0),
        Settled(dead.receipt, dead.lease, State.FAILED, "failed", error="E: never", traceback="line 1", seconds=30.0),
        Settled(lost.receipt, lost.lease, State.FAILED, "failed", error="E: of the lost lease"),
    ]
    assert await store.leases.settle(settled) == {done.receipt, retried.receipt, dead.receipt}
    assert rows(ATTEMPTS) == [
        ("evt_0", 1, "processed", None),
        ("evt_1", 1, "retrying", "E: later"),
        ("evt_2", 1, "failed", "E: never"),
        ("evt_3", 1, "crashed", None),
    ]
    columns = "processed_at IS NOT NULL, failed_at IS NOT NULL, next_attempt_at IS NOT NULL, lease_until"
    assert rows(f"SELECT {columns} FROM webhook_receipts WHERE event_id <> 'evt_3' ORDER BY event_id") == [
        (True, False, False, None),
        (False, False, True, None),
        (False, True, False, None),
    ]
    (attempt,) = await store.receipts.attempts(dead.receipt)
    assert attempt.traceback == "line 1" and seconds_taken(attempt) == pytest.approx(30, abs=1)
