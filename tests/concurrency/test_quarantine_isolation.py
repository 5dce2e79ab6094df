"""A quarantined receipt runs alone."""

from typing import Any

import pytest

from oncehook import Inbox
from oncehook.concurrency import quarantine
from oncehook.model.lease import Settled
from oncehook.model.states import State
from tests.support.events import make_claim
from tests.support.stores import claim_and_lease
from tests.support.waiting import eventually, next_turn
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio


async def test_no_handler_starts_beside_a_quarantined_receipt(
    make_inbox: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "INTERVAL", 0.1)  # while other receipts are leased ahead
    inbox: Inbox = make_inbox(worker=False, concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    running: set[str] = set()
    beside: list[set[str]] = []

    @inbox.on("stripe", "*")
    async def handle(event: Any) -> None:
        running.add(event.id)
        for _ in range(10):
            await next_turn()
            if "evt_0" in running:
                beside.append(running - {"evt_0"})
        running.discard(event.id)

    async with inbox.lifespan():
        (leased,) = await claim_and_lease(inbox._runtime.store)
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(1, 31)])
        inbox._runtime.start_worker()
        await eventually(lambda: bool(running))
        crashed = Settled(leased.receipt, leased.lease, State.RETRYING, "crashed", after=0.0, crashed=True)
        await inbox._runtime.store.leases.settle([crashed])
        await eventually(receipts_are(database, "processed", 31))
    assert beside, "the quarantined receipt must have run"
    assert set().union(*beside) == set(), "no other handler may run beside it"
