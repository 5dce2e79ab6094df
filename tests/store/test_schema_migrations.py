"""Migrations on both databases: each is applied once, in one transaction, whichever process starts first."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store import make_store, queries
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import ask

pytestmark = pytest.mark.anyio


async def test_migrated_store_has_nothing_pending(store: Store) -> None:
    assert await store.schema.pending() == []
    assert await store.schema.migrate() == []


async def started(database: str, *, migrate: str = "auto") -> Store:
    store = make_store(Settings(database=database, migrate=migrate))
    await store.open()
    return store


@pytest.mark.without_schema
async def test_every_migration_is_pending_on_an_empty_database(database: str) -> None:
    store = await started(database, migrate="never")
    pending = await store.schema.pending()
    assert [number for number, _, _ in pending] == list(range(1, len(pending) + 1)) and pending
    assert await store.schema.migrate() == [f"{number:03d}_{name}" for number, name, _ in pending]
    assert await store.schema.pending() == []
    assert (await store.claims.insert([make_claim()]))[0].fresh
    await store.close()


APPLIED = "SELECT number, name FROM webhook_migrations ORDER BY number"

SECOND = (2, "notes", "ALTER TABLE webhook_receipts ADD COLUMN note text;\nCREATE TABLE webhook_notes (id integer);\n")


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, str, str]], None]:
    """Adds a migration to those of this version, as the next release would."""

    def add(migration: tuple[int, str, str]) -> None:
        released = queries.migrations
        monkeypatch.setattr(queries, "migrations", lambda dialect: (*released(dialect), migration))

    return add


def names(database: str) -> list[tuple[int, str]]:
    dialect = database.partition(":")[0].removesuffix("ql")
    return [(number, name) for number, name, _ in queries.migrations(dialect)]


@pytest.mark.without_schema
async def test_concurrent_starts_apply_each_migration_once(
    database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    add_migration(SECOND)
    stores = [make_store(Settings(database=database)) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    assert ask(database, APPLIED) == names(database) and names(database)[-1] == (2, "notes")
    outcomes = await asyncio.gather(*(store.claims.insert([make_claim()]) for store in stores))
    assert sum(claimed.fresh for (claimed,) in outcomes) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_older_schema_is_migrated_and_keeps_its_events(
    database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    older = await started(database)
    (claimed,) = await older.claims.insert([make_claim("evt_1")])
    add_migration(SECOND)
    waiting = await started(database, migrate="never")
    assert await waiting.schema.pending() == [SECOND]
    newer = await started(database)
    try:
        assert await newer.schema.pending() == []
        assert ask(database, "SELECT event_id, note FROM webhook_receipts") == [("evt_1", None)]
        assert not (await newer.claims.insert([make_claim("evt_1")]))[0].fresh
        assert (await older.claims.insert([make_claim("evt_2")]))[
            0
        ].fresh  # additive: the older release goes on beside it
        assert await older.receipts.get(claimed.receipt) is not None
    finally:
        for store in (older, waiting, newer):
            await store.close()


async def test_schema_of_a_newer_release_is_accepted(database: str) -> None:
    await (await started(database)).close()
    ask(database, "INSERT INTO webhook_migrations (number, name) VALUES (99, 'later')")
    store = await started(database)
    assert await store.schema.pending() == [] and (await store.claims.insert([make_claim()]))[0].fresh
    await store.close()


BROKEN = (2, "broken", "CREATE TABLE webhook_notes (id integer);\nINSERT INTO webhook_nowhere VALUES (1);\n")


async def test_failed_migration_is_rolled_back(
    database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    await (await started(database)).close()
    add_migration(BROKEN)
    with pytest.raises(StoreUnavailable, match="webhook_nowhere"):
        await started(database)
    assert ask(database, APPLIED) == names(database)[:-1]
    ask(database, "CREATE TABLE webhook_notes (id integer)")  # it is not there


async def _make_unreleased(database: str) -> None:
    await (await started(database)).close()
    ask(database, "DELETE FROM webhook_migrations")
    ask(database, "INSERT INTO webhook_migrations (number, name) VALUES (1, 'door'), (2, 'work'), (22, 'unhandled')")


@pytest.fixture
def unreleased(database: str) -> str:
    """A database as development versions before the first release left it: other migrations under the same numbers."""
    asyncio.run(_make_unreleased(database))
    return database


@pytest.mark.parametrize("migrate", ["auto", "never"])
def test_start_fails_on_an_unreleased_schema(unreleased: str, make_inbox: Callable[..., Inbox], migrate: str) -> None:
    async def start() -> None:
        async with make_inbox(migrate=migrate).lifespan():
            pass

    with pytest.raises(ConfigurationError, match=r"before the first release.* 001 is door.* recreate the database"):
        asyncio.run(start())
    assert ask(unreleased, APPLIED) == [(1, "door"), (2, "work"), (22, "unhandled")]
