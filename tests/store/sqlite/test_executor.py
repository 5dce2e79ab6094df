"""Statements on SQLite connections."""

import sqlite3

import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.executor import Run
from oncehook.store.sqlite.executor import fetch, transact
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.stores import sqlite_of

pytestmark = pytest.mark.anyio

ENTRY = {"actor": "jane", "action": "test", "detail": "{}"}


async def test_transact_commits_the_statements_of_its_work(store: Store, rows: Rows) -> None:
    async def work(run: Run) -> int:
        await run("audit", ENTRY)
        return len(await run("audit_entries", {"limit": 10}))

    assert await sqlite_of(store).file.write(lambda connection: transact(connection, work)) == 1
    assert rows("SELECT actor FROM webhook_audit") == [("jane",)]


async def test_rows_can_be_read_by_name_and_by_position(store: Store) -> None:
    def read(connection: sqlite3.Connection) -> tuple[int, int]:
        (row,) = fetch(connection, "free_pages")
        return row[0], len(row.keys())

    free, columns = await sqlite_of(store).file.write(read)
    assert free >= 0 and columns == 2


async def test_read_cannot_write(store: Store, rows: Rows) -> None:
    with pytest.raises(StoreUnavailable, match="readonly"):
        await store.database.executor.read("audit", ENTRY)
    assert rows("SELECT * FROM webhook_audit") == []


async def test_only_errors_of_the_driver_become_unavailable(store: Store) -> None:
    as_unavailable = store.database.executor.as_unavailable
    assert as_unavailable(KeyError("a")) is None
    error = as_unavailable(sqlite3.OperationalError("disk I/O error"))
    assert isinstance(error, StoreUnavailable) and "disk I/O error" in str(error)
