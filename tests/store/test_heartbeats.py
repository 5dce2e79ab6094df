"""Heartbeat connections of every store."""

import asyncio
from typing import Any

import pytest

from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.stores import claim_and_lease, lose_lease

pytestmark = pytest.mark.anyio


async def test_heartbeat_cannot_extend_a_lost_lease(store: Store, rows: Rows) -> None:
    (lost,) = await claim_and_lease(store)
    current = await lose_lease(store, lost)
    lease_until = "SELECT lease_until FROM webhook_receipts"
    before = rows(lease_until)
    connection = store.heartbeat_connection()

    def extend_both() -> list[Any]:
        """Extends the lost lease, then the current one, in one thread as the heartbeat does."""
        try:
            connection.extend([lost.lease_key], 3600)
            after_lost = rows(lease_until)
            connection.extend([current.lease_key], 3600)
            return [after_lost, rows(lease_until)]
        finally:
            connection.close()

    after_lost, after_current = await asyncio.to_thread(extend_both)
    assert after_lost == before, "the first worker must not extend the second's lease"
    assert after_current != before, "the second worker must extend its own lease"
