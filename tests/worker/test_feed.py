"""The feed of a worker without a queue: it leases from the database. `queue/test_feed.py` has the other one."""

import pytest

from oncehook import Inbox
from oncehook.model.patterns import Handled
from oncehook.worker.feed import DatabaseFeed
from tests.support.work import claim

pytestmark = pytest.mark.anyio


def make_feed(inbox: Inbox, handled: Handled) -> DatabaseFeed:
    leases = inbox._runtime.store.leases
    return DatabaseFeed(
        leases=leases, worker="worker-1", lease_seconds=30.0, poll=1.5, skip_failed=(), handled=lambda: handled
    )


async def test_it_leases_what_is_due_up_to_the_limit(inbox: Inbox) -> None:
    receipts = await claim(inbox, "evt_1", "evt_2", "evt_3")

    @inbox.on("stripe", "*")
    async def handle(event: object) -> None: ...

    feed = make_feed(inbox, inbox._runtime.handlers.handled_by("main"))
    assert (feed.room(5), feed.seconds_left()) == (5, 1.5)
    assert [leased.receipt for leased in await feed.take(2)] == receipts[:2]
    assert await feed.take(5, rescued=True) == []


async def test_a_process_without_handlers_leases_nothing(inbox: Inbox) -> None:
    await claim(inbox, "evt_1")
    feed = make_feed(inbox, inbox._runtime.handlers.handled_by("main"))
    feed.wake()
    feed.postponed([1], 0.0)
    feed.ended([1])
    assert await feed.take(2) == []
