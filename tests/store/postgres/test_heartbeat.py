"""The heartbeat's connection on PostgreSQL."""

import asyncio

import psycopg
import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.proxy import proxied
from tests.support.stores import claim_and_lease, open_store

pytestmark = pytest.mark.anyio

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'oncehook heartbeat'"
)


async def test_leases_are_extended_on_a_dedicated_connection(store: Store, rows: Rows) -> None:
    (leased,) = await claim_and_lease(store)
    connection = store.heartbeat_connection()

    def extend() -> int:
        try:
            connection.extend([leased.lease_key], 3600.0)
            return int(rows(SESSIONS)[0][0])
        finally:
            connection.close()

    assert await asyncio.to_thread(extend) == 1
    ((left,),) = rows("SELECT extract(epoch FROM lease_until - now())::float FROM webhook_receipts")
    assert 3000 < left <= 3600


async def test_receipts_are_released_without_an_attempt(store: Store, rows: Rows) -> None:
    (leased,) = await claim_and_lease(store)
    connection = store.heartbeat_connection()

    def release() -> None:
        try:
            connection.release([leased.lease_key])
        finally:
            connection.close()

    await asyncio.to_thread(release)
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("received", 0)]


async def test_lost_connection_raises_unavailable_and_the_next_call_connects_again(database: str) -> None:
    async with proxied(database) as (proxy, through), open_store(through) as store:
        (leased,) = await claim_and_lease(store)
        connection = store.heartbeat_connection()

        def extend() -> None:
            connection.extend([leased.lease_key], 3600.0)

        try:
            await asyncio.to_thread(extend)
            proxy.refuse()
            with pytest.raises(StoreUnavailable, match="the heartbeat failed"):
                await asyncio.to_thread(extend)
            proxy.accept()
            await asyncio.to_thread(extend)
        finally:
            await asyncio.to_thread(connection.close)


async def test_heartbeat_does_not_wait_for_a_receipt_that_another_session_has_locked(
    store: Store, database: str, rows: Rows
) -> None:
    """A hung session must not let the leases of all other handlers expire."""
    hung, other = await claim_and_lease(store, 2)
    connection = store.heartbeat_connection()

    def extend() -> None:
        try:
            connection.extend([hung.lease_key, other.lease_key], 3600.0)
        finally:
            connection.close()

    with psycopg.connect(database) as session:
        session.execute("SELECT 1 FROM webhook_receipts WHERE id = %s FOR UPDATE", [hung.receipt])
        async with asyncio.timeout(5):
            await asyncio.to_thread(extend)
    await store.schema.move_times_back(120)
    assert [row.receipt for row in await store.leases.expired(10, 0)] == [hung.receipt]
