"""Fixtures for the tests of every store."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.settings import Settings
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim


@pytest.fixture
async def ledger_inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with the event `evt_1` and a table `ledger` for handlers to write to."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        yield inbox


@pytest.fixture
def insert(database: str) -> str:
    """A statement that inserts a row into `ledger`."""
    return f"INSERT INTO ledger (note) VALUES ({'$1' if database.startswith('postgresql') else '?'})"


@pytest.fixture(params=["sqlite", "postgres"])
def closed_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each database, not opened."""
    urls = {"sqlite": f"sqlite:///{tmp_path / 'a.db'}", "postgres": "postgresql://localhost/unused"}
    return make_store(Settings(database=urls[request.param]))
