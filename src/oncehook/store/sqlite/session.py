"""A handler's connection on SQLite, and whether the next handler may use it.

When SQLite compiles a statement, it reports to the authorizer what the statement does, including its views and
triggers. Only statements that read and write rows of the main database leave a connection unchanged. After any other
statement (a pragma, ATTACH, a temporary table, a schema change) the connection is closed. SQLite does not report a
cached statement again. That is safe: a statement that changes the connection has already closed it.
"""

import sqlite3
from pathlib import Path
from typing import Any

from oncehook.store.sqlite.file import BUSY_MS

HARMLESS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_TRANSACTION,
    }
)
"""Actions that leave the connection unchanged. An action that a later SQLite adds is not among them."""


CREATE_SESSION_TABLE = "CREATE TEMP TABLE IF NOT EXISTS oncehook_session (id INTEGER PRIMARY KEY)"
RESET_ROWID = "INSERT OR REPLACE INTO temp.oncehook_session VALUES (0)"
"""Sets `last_insert_rowid()` to 0, as on a new connection."""


def is_harmless(action: int, database: str | None) -> bool:
    """Whether an action, as SQLite reports it to the authorizer, leaves the connection unchanged."""
    return action in HARMLESS and database != "temp"


class HandlerConnection(sqlite3.Connection):
    """A connection that records whether a handler changed its state."""

    is_clean = True

    def watch_statements(self) -> None:
        """Start recording what statements do."""
        self.execute(CREATE_SESSION_TABLE)
        self.set_authorizer(self._record)

    def _record(
        self, action: int, name: str | None, detail: str | None, database: str | None, within: str | None
    ) -> int:
        if not is_harmless(action, database):
            self.is_clean = False
        return sqlite3.SQLITE_OK

    def reset_rowid(self) -> None:
        """Reset `last_insert_rowid()`."""
        was_clean = self.is_clean
        self.execute(RESET_ROWID)
        self.is_clean = was_clean


def connect(path: Path) -> HandlerConnection:
    connection: Any = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000, factory=HandlerConnection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # only the writer checkpoints
    connection.watch_statements()
    return connection  # type: ignore[no-any-return]
