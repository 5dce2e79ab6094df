"""A handler's connection on PostgreSQL, and which of its methods leave something that no statement takes back.

What SQL leaves in a session is cleaned in the session itself, after every handler, whatever the handler sent: no
statement is judged by its text. What asyncpg keeps on its side of the connection (codecs, listeners, prepared
statements and cursors that a handler may hold on to) ends with the connection.
"""

from typing import Any

import asyncpg

STATELESS = frozenset(
    {
        "execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval",
        "copy_from_query", "copy_from_table", "copy_records_to_table", "copy_to_table",
        "get_server_pid", "get_server_version", "get_settings", "is_closed", "is_in_transaction", "terminate",
    }
)  # fmt: skip
"""Methods that change nothing in the driver. After any other, also one that a later asyncpg adds, it is closed."""


class HandlerConnection(asyncpg.Connection):
    """A connection that knows whether another handler may have it."""

    is_used_up = False  # a handler changed the driver's side of it, or it is not known what state it is in
    begun_at: float | None = None  # it waits for its next handler in a transaction, since then


def _uses_up(name: str) -> None:
    inherited = getattr(asyncpg.Connection, name)

    def used_up(self: HandlerConnection, *args: Any, **named: Any) -> Any:
        self.is_used_up = True
        return inherited(self, *args, **named)

    setattr(HandlerConnection, name, used_up)


for _name in dir(asyncpg.Connection):
    if not _name.startswith("_") and _name not in STATELESS:
        _uses_up(_name)
