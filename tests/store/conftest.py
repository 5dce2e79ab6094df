"""Fixtures for the tests of every store."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.settings import Settings
from oncehook.store import make_store, queries
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.migrations import AddMigration
from tests.support.servers import run_sql


@pytest.fixture
async def ledger_inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with the event `evt_1` and a table `ledger` for handlers to write to."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        yield inbox


@pytest.fixture(params=["sqlite", "postgres"])
def closed_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each database, not opened."""
    urls = {"sqlite": f"sqlite:///{tmp_path / 'a.db'}", "postgres": "postgresql://localhost/unused"}
    return make_store(Settings(database=urls[request.param]))


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch) -> AddMigration:
    """Adds a migration to those of this version, as the next release does."""

    def add(migration: tuple[int, str, str]) -> None:
        released = queries.migrations
        monkeypatch.setattr(queries, "migrations", lambda dialect: (*released(dialect), migration))

    return add


@pytest.fixture
def unreleased_database(database: str) -> str:
    """A database of a development version from before the first release, with other migrations."""
    run_sql(database, "DELETE FROM webhook_migrations")
    run_sql(
        database, "INSERT INTO webhook_migrations (number, name) VALUES (1, 'door'), (2, 'work'), (22, 'unhandled')"
    )
    return database
