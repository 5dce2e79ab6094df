"""The schema on PostgreSQL: times and partitions."""

import pytest

from oncehook.store.store import Store
from tests.support.ages import PARTITIONS
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_times_move_back_with_the_payload_of_the_receipt(store: Store, rows: Rows) -> None:
    (receipt,) = await claim(store, "evt_1")
    before = len(rows(PARTITIONS))
    await store.schema.move_times_back(40 * 86400)
    ((age,),) = rows("SELECT extract(day FROM now() - received_at)::integer FROM webhook_receipts")
    assert age == 40
    assert await store.receipts.payload(receipt) is not None, "the payload must be in the partition of its receipt"
    assert len(rows(PARTITIONS)) == before + 1


async def test_pending_migrations_of_a_database_without_tables_are_all(store: Store, rows: Rows) -> None:
    rows("DROP TABLE webhook_migrations")
    assert [name for _, name, _ in await store.schema.pending()] == ["initial"]


async def test_lock_of_migrations_is_released_after_a_migration(store: Store, rows: Rows) -> None:
    assert await store.schema.migrate() == []
    ours = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    assert rows(f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {ours}") == [(0,)]
