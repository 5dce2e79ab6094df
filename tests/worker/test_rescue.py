"""Receipts whose lease has expired are rescued, and become dead letters after their attempts."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.worker.rescue import rescue
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
        assert [one.event_id for one in leased] == ["evt_1"]
        await eventually(lambda: bool(rows("SELECT 1 FROM webhook_receipts WHERE status = 'processing'")))
        rescued = 0
        while not rescued:  # the lease of no seconds runs out with the database's next tick
            rescued = await rescue(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources)
    states = [row[:4] for row in rows(STATES)]
    assert states == [("evt_1", "failed", 2, "crashed"), ("evt_2", "received", 0, None)]
    told = [(line["event"], line["event_id"], line["attempt"]) for line in lines()]
    assert told == [("lease_expired", "evt_1", 1), ("lease_expired", "evt_1", 2), ("dead_letter", "evt_1", 2)]
