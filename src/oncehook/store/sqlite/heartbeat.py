"""Extends leases on SQLite."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import LeaseKey
from oncehook.store.leases import lease_keys_json
from oncehook.store.sqlite.file import BUSY_MS, without_transaction


class SqliteHeartbeatConnection:
    """Implements `HeartbeatConnection` with a dedicated connection."""

    def __init__(self, path: Path, sql: dict[str, str]) -> None:
        self.path = path
        self.sql = sql
        self._connection: sqlite3.Connection | None = None

    def extend(self, keys: Sequence[LeaseKey], seconds: float) -> None:
        self._execute("extend", {"held": lease_keys_json(keys), "seconds": seconds}, seconds / 3)

    def release(self, keys: Sequence[LeaseKey]) -> None:
        self._execute("release", {"held": lease_keys_json(keys), "after": None}, BUSY_MS / 1000)

    def _execute(self, name: str, parameters: dict[str, Any], seconds: float) -> None:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self.path, isolation_level=None, timeout=seconds)
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(self.sql[name], parameters).fetchall()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._connection = without_transaction(self._connection)
            raise StoreUnavailable(f"the heartbeat failed: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
