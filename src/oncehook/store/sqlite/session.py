"""A handler's connection on SQLite, and whether the next handler may have it.

SQLite tells what a statement really does when it compiles it, in the words of its authorizer: also what a view or a
trigger behind it does. Only statements that read and write rows of the database itself leave a connection as it was.
After any other one (a pragma, ATTACH, a temporary table, a change of the schema) the connection is closed. A statement
that Python has compiled before is not announced again, but one that was not harmless has closed the connection that
knew it.
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
"""Actions of a statement that change nothing in the connection. One that a later SQLite adds is not among them."""


MAKE_TABLE = "CREATE TEMP TABLE IF NOT EXISTS oncehook_session (id INTEGER PRIMARY KEY)"
FORGET = "INSERT OR REPLACE INTO temp.oncehook_session VALUES (0)"
"""Let `last_insert_rowid()` be 0, as on a new connection."""


def is_harmless(action: int, database: str | None) -> bool:
    """Whether a statement leaves its connection as it was, by what SQLite tells its authorizer."""
    return action in HARMLESS and database != "temp"


class HandlerConnection(sqlite3.Connection):
    """A connection that knows whether its handlers left anything in it."""

    is_clean = True

    def watch(self) -> None:
        """From here on, note what statements do."""
        self.execute(MAKE_TABLE)
        self.set_authorizer(self._note)

    def _note(self, action: int, name: str | None, detail: str | None, database: str | None, within: str | None) -> int:
        if not is_harmless(action, database):
            self.is_clean = False
        return sqlite3.SQLITE_OK

    def forget(self) -> None:
        was_clean = self.is_clean
        self.execute(FORGET)
        self.is_clean = was_clean


def connect(path: Path) -> HandlerConnection:
    connection: Any = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000, factory=HandlerConnection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # only the writer checkpoints
    connection.watch()
    return connection  # type: ignore[no-any-return]
