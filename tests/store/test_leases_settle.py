"""Every statement that settles a receipt as processed writes the same row.

PostgreSQL has three: for handlers without a transaction, for one event in its handler's transaction, and for the other
events of a batch. One definition for all of them would be slower, so this test compares them instead.
"""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.testing import deliver, drain
from tests.support.events import Rows

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
