"""The worker leases receipts, runs quarantined ones in isolation, and releases the rest when it stops."""

import asyncio
import time
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.concurrency import quarantine as quarantine_module
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.observability.checkpoints import Checkpoint
from oncehook.testing import deliver
from tests.support.events import Rows
from tests.support.signals import SIGNALS
from tests.support.waiting import block_thread, eventually, let_time_pass, next_turn
from tests.support.work import claim, receipts_are

pytestmark = pytest.mark.anyio


async def crash(inbox: Inbox, event_id: str) -> None:
    """Insert a receipt whose worker died and which is due in an hour. Call it before a worker runs."""
    await claim(inbox, event_id)
    (leased,) = await inbox._runtime.store.leases.take(1, 30, "gone")
    crashed = Settled(leased.receipt, leased.lease, State.RETRYING, "crashed", after=3600, crashed=True)
    assert await inbox._runtime.store.leases.settle([crashed])


def make_due(rows: Rows, event_id: str) -> None:
    rows(f"UPDATE webhook_receipts SET next_attempt_at = NULL WHERE event_id = '{event_id}'")


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        block_thread(3.5)  # two leases: the event loop is blocked, but the heartbeat runs in a thread
        await tx.execute(insert, event.id, f"attempt {event.attempt}")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows("SELECT note FROM ledger") == [("attempt 1",)]


async def test_a_quarantined_receipt_waits_for_running_handlers_and_then_runs_in_isolation(
    inbox: Inbox, rows: Rows
) -> None:
    """While a slow handler runs, other events are processed. After it, the quarantined one runs in isolation."""
    running: set[str] = set()
    beside: list[set[str]] = []
    slow_ends, slow_began = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        running.add(event.id)
        if event.id == "slow":
            slow_began.set()
            await slow_ends.wait()
        if event.id == "crashed":
            beside.append(running - {"crashed"})
            await next_turn()
            beside.append(running - {"crashed"})
        running.discard(event.id)

    await crash(inbox, "crashed")
    await claim(inbox, "slow")
    inbox._runtime.start_worker()
    assert inbox._runtime.worker is not None
    await asyncio.wait_for(slow_began.wait(), 20)
    make_due(rows, "crashed")
    inbox._runtime.worker._quarantine._next_at = 0.0  # due now
    await claim(inbox, *(f"evt_{n:02d}" for n in range(20)))
    inbox._runtime.worker.wake()
    await eventually(receipts_are(rows, "processed", 20))
    assert not beside, "the quarantined receipt must wait for the slow handler"
    await claim(inbox, *(f"later_{n:02d}" for n in range(20)))
    inbox._runtime.worker.wake()
    await eventually(receipts_are(rows, "processed", 40))
    slow_ends.set()
    inbox._runtime.worker.wake()
    await eventually(receipts_are(rows, "processed", 42), within=60)
    assert beside == [set(), set()]
    assert rows("SELECT attempts FROM webhook_receipts WHERE event_id = 'crashed'") == [(2,)]


async def test_a_quarantined_receipt_runs_although_other_events_keep_arriving(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_module, "INTERVAL", 1.0)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await let_time_pass(0.05)

    await crash(inbox, "zzz")
    await claim(inbox, *(f"evt_{n:04d}" for n in range(50)))
    inbox._runtime.start_worker()
    await eventually(lambda: not receipts_are(rows, "processed", 0)())
    make_due(rows, "zzz")
    deadline, number = time.monotonic() + 60, 50
    while not rows("SELECT 1 FROM webhook_receipts WHERE event_id = 'zzz' AND status = 'processed'"):
        assert time.monotonic() < deadline
        await claim(inbox, *(f"evt_{n:04d}" for n in range(number, number + 20)))
        number += 20
        inbox._runtime.worker.wake()  # type: ignore[union-attr]
        await SIGNALS.wait_for(Checkpoint.RECEIPTS_SETTLED)


async def test_a_stop_releases_the_receipts_that_were_not_started(inbox: Inbox, rows: Rows) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        started.set()
        await go_on.wait()

    await claim(inbox, *(f"evt_{n:02d}" for n in range(60)))
    inbox._runtime.start_worker()
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(inbox._runtime.worker.stop())  # type: ignore[union-attr]
    await next_turn()
    go_on.set()
    await stopping
    assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processing'") == [(0,)]
    waiting = rows("SELECT count(*) FROM webhook_receipts WHERE status = 'received' AND attempts = 0")[0][0]
    assert waiting + rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'")[0][0] == 60
    assert waiting > 0, "receipts beyond the free slots must be released"


async def test_a_duplicate_is_answered_while_the_handler_of_its_receipt_runs(inbox: Inbox, insert: str) -> None:
    inside = asyncio.Event()
    go_on = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        inside.set()
        await go_on.wait()
        await tx.execute(insert, event.id, "slow")

    first = await deliver(inbox, "stripe", type="invoice.paid")
    assert first.status == 202
    inbox._runtime.start_worker()
    await asyncio.wait_for(inside.wait(), 10)
    assert (await deliver(inbox, "stripe", first.sent)).outcome == (200, "duplicate")
    go_on.set()
