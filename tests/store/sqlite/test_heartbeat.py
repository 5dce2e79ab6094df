"""The heartbeat's connection on SQLite."""

import asyncio
import sqlite3
from functools import partial
from typing import Any

import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.sqlite.heartbeat import SqliteHeartbeatConnection
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.stores import claim_and_lease, sqlite_of

pytestmark = pytest.mark.anyio


async def test_lease_is_extended_and_released_in_a_thread(store: Store, rows: Rows) -> None:
    (leased,) = await claim_and_lease(store, seconds=1.0)
    before = rows("SELECT lease_until FROM webhook_receipts")
    connection = store.heartbeat_connection()

    def extend_and_release() -> list[tuple[object, ...]]:
        try:
            connection.extend([leased.lease_key], 3600.0)
            extended = rows("SELECT lease_until FROM webhook_receipts")
            connection.release([leased.lease_key])
            return extended
        finally:
            connection.close()

    assert await asyncio.to_thread(extend_and_release) > before
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("received", 0)]


async def test_locked_file_raises_unavailable_and_leaves_no_transaction(store: Store) -> None:
    (leased,) = await claim_and_lease(store)
    file = sqlite_of(store).file
    connection = SqliteHeartbeatConnection(file.path, file.sql)
    writer = sqlite3.connect(file.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreUnavailable, match="the heartbeat failed: database is locked"):
            connection.extend([leased.lease_key], 0.03)
        writer.execute("ROLLBACK")
        connection.extend([leased.lease_key], 60.0)
    finally:
        writer.close()
        connection.close()


class UnableToEnd(sqlite3.Connection):
    """A connection whose transactions can neither commit nor roll back."""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *args)

    def rollback(self) -> None:
        raise sqlite3.OperationalError("disk I/O error")


async def test_connection_that_cannot_roll_back_does_not_keep_the_write_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (leased,) = await claim_and_lease(store)
    file = sqlite_of(store).file
    connection = SqliteHeartbeatConnection(file.path, file.sql)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=UnableToEnd))
        with pytest.raises(StoreUnavailable, match="the heartbeat failed: disk I/O error"):
            connection.extend([leased.lease_key], 60.0)
    writer = sqlite3.connect(file.path, isolation_level=None, timeout=0)
    try:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("ROLLBACK")
        connection.extend([leased.lease_key], 60.0)
    finally:
        writer.close()
        connection.close()


async def test_connection_that_was_never_used_can_be_closed(store: Store) -> None:
    store.heartbeat_connection().close()
