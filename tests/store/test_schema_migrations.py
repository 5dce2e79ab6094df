"""Migrations on both databases: each is applied once, in one transaction, whichever process starts first."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.migrations import APPLIED, BROKEN, SECOND, AddMigration, migration_names
from tests.support.servers import run_sql
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio


async def test_migrated_store_has_nothing_pending(store: Store) -> None:
    assert await store.schema.pending() == []
    assert await store.schema.migrate() == []


@pytest.mark.without_schema
async def test_every_migration_is_pending_on_an_empty_database(database: str) -> None:
    async with open_store(database, migrate="never") as store:
        pending = await store.schema.pending()
        assert [number for number, _, _ in pending] == list(range(1, len(pending) + 1)) and pending
        assert await store.schema.migrate() == [f"{number:03d}_{name}" for number, name, _ in pending]
        assert await store.schema.pending() == []
        assert (await store.claims.insert([make_claim()]))[0].fresh


@pytest.mark.without_schema
async def test_concurrent_starts_apply_each_migration_once(database: str, add_migration: AddMigration) -> None:
    add_migration(SECOND)
    stores = [make_store(Settings(database=database)) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    assert run_sql(database, APPLIED) == migration_names(database) and migration_names(database)[-1] == (2, "notes")
    outcomes = await asyncio.gather(*(store.claims.insert([make_claim()]) for store in stores))
    assert sum(claimed.fresh for (claimed,) in outcomes) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_older_schema_is_migrated_and_keeps_its_events(database: str, add_migration: AddMigration) -> None:
    async with open_store(database) as older:
        (claimed,) = await older.claims.insert([make_claim("evt_1")])
        add_migration(SECOND)
        async with open_store(database, migrate="never") as waiting:
            assert await waiting.schema.pending() == [SECOND]
        async with open_store(database) as newer:
            assert await newer.schema.pending() == []
            assert run_sql(database, "SELECT event_id, note FROM webhook_receipts") == [("evt_1", None)]
            assert not (await newer.claims.insert([make_claim("evt_1")]))[0].fresh
            (second,) = await older.claims.insert([make_claim("evt_2")])
            assert second.fresh, "the older release must keep working on the newer schema"
            assert await older.receipts.get(claimed.receipt) is not None


async def test_schema_of_a_newer_release_is_accepted(database: str) -> None:
    run_sql(database, "INSERT INTO webhook_migrations (number, name) VALUES (99, 'later')")
    async with open_store(database) as store:
        assert await store.schema.pending() == [] and (await store.claims.insert([make_claim()]))[0].fresh


async def test_failed_migration_is_rolled_back(database: str, add_migration: AddMigration) -> None:
    add_migration(BROKEN)
    with pytest.raises(StoreUnavailable, match="webhook_nowhere"):
        await make_store(Settings(database=database)).open()
    assert run_sql(database, APPLIED) == migration_names(database)[:-1]
    run_sql(database, "CREATE TABLE webhook_notes (id integer)")  # fails if the table exists


@pytest.mark.parametrize("migrate", ["auto", "never"])
def test_start_fails_on_an_unreleased_schema(
    unreleased_database: str, make_inbox: Callable[..., Inbox], migrate: str
) -> None:
    async def start() -> None:
        async with make_inbox(migrate=migrate).lifespan():
            pass

    with pytest.raises(ConfigurationError, match=r"before the first release.* 001 is door.* recreate the database"):
        asyncio.run(start())
    assert run_sql(unreleased_database, APPLIED) == [(1, "door"), (2, "work"), (22, "unhandled")]
