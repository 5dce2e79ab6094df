"""The heartbeat on a real store: how long it keeps leases alive."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from oncehook.store.store import Store
from oncehook.worker.heartbeat import Heartbeat
from tests.support.events import Rows
from tests.support.stores import claim_and_lease
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def heartbeat(store: Store) -> AsyncIterator[Heartbeat]:
    heartbeat = Heartbeat(store.heartbeat_connection(), 1.0)
    heartbeat.start()
    yield heartbeat
    await asyncio.to_thread(heartbeat.stop)


async def test_heartbeat_keeps_a_lease_while_the_event_loop_is_blocked(
    store: Store, heartbeat: Heartbeat, rows: Rows
) -> None:
    (leased,) = await claim_and_lease(store, seconds=1.0)
    heartbeat.hold(leased.lease_key, 60.0)
    extensions: set[str] = set()

    def is_extended() -> bool:
        extensions.update(str(until) for (until,) in rows("SELECT lease_until FROM webhook_receipts"))
        return len(extensions) > 6  # the heartbeat extends three times per lease: two leases have passed

    wait_until(is_extended, "the heartbeat extends the lease")  # blocks the event loop
    assert await store.leases.expired(10, 0) == []


async def test_heartbeat_lets_a_lease_expire_after_the_timeout_of_its_handler(
    store: Store, heartbeat: Heartbeat
) -> None:
    (leased,) = await claim_and_lease(store, seconds=1.0)
    heartbeat.hold(leased.lease_key, 0.5)
    await eventually(lambda: store.leases.expired(10, 0), "the lease expires", within=20)
