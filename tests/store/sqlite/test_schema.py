"""The schema of a SQLite file."""

import pytest

from oncehook.store.schema import split_statements
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


def test_migration_is_split_into_complete_statements() -> None:
    table = "CREATE TABLE a (x TEXT DEFAULT ';');\n"
    trigger = "-- a comment;\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n  SELECT 1;\nEND;\n"
    statements = split_statements(table + trigger)
    assert len(statements) == 2
    assert statements[0].startswith("CREATE TABLE") and "END;" in statements[1]


async def test_every_time_is_moved_back(store: Store, rows: Rows) -> None:
    await claim(store, "evt_1")
    await store.leases.take(1, 60, "worker")
    before = rows("SELECT received_at, leased_at, lease_until FROM webhook_receipts")[0]
    await store.schema.move_times_back(3600)
    after = rows("SELECT received_at, leased_at, lease_until FROM webhook_receipts")[0]
    assert all(earlier < later for earlier, later in zip(after, before, strict=True))
    assert all(time.endswith("Z") and len(time) == 27 for time in after), "times must keep their format"


async def test_file_without_tables_has_all_migrations_pending(store: Store, rows: Rows) -> None:
    rows("DROP TABLE webhook_migrations")
    assert [name for _, name, _ in await store.schema.pending()] == ["initial"]
