"""A handler's connection on PostgreSQL.

After every handler, the session itself is cleaned, whatever SQL the handler sent: no statement is judged by its text.
What asyncpg keeps on the client side (codecs, listeners, prepared statements and cursors that a handler may hold)
cannot be cleaned. After a call of a method that changes it, the connection is closed.

When a worker's host vanishes, the server would keep the worker's transactions and their locks for hours. Therefore the
sessions have timeouts, and they carry their worker's name, by which `end_sessions` finds them.
"""

import hashlib
from math import ceil
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

STATELESS = frozenset(
    {
        "execute",
        "executemany",
        "fetch",
        "fetchmany",
        "fetchrow",
        "fetchval",
        "copy_from_query",
        "copy_from_table",
        "copy_records_to_table",
        "copy_to_table",
        "get_server_pid",
        "get_server_version",
        "get_settings",
        "is_closed",
        "is_in_transaction",
        "terminate",
    }
)
"""Methods that leave no state in the driver. After any other method, also a future one, the connection is closed."""


MARGIN = 10.0
"""For how many seconds a session outlives the longest handler. A live worker ends its handlers before that."""

IDLE = "idle_in_transaction_session_timeout"


def session_name(worker: str) -> str:
    """Return the application_name of a worker's sessions. It is unique within the 63 bytes that PostgreSQL keeps."""
    name = f"oncehook {worker}".rstrip()
    if name.isascii() and len(name) < 64:
        return name
    return f"oncehook {hashlib.sha256(worker.encode()).hexdigest()[:32]}"


def session_limits(address: str, lease: float, longest: float) -> dict[str, str]:
    """Return the timeouts that end a session whose client is gone, except those that the URL sets."""
    seconds = ceil(lease)
    limits = {
        IDLE: str(ceil((longest + MARGIN) * 1000)),
        "tcp_keepalives_idle": str(seconds),
        "tcp_keepalives_interval": str(ceil(seconds / 3)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(2 * seconds * 1000),
    }
    query = parse_qs(urlsplit(address).query)
    options = " ".join(query.get("options", []))
    return {name: value for name, value in limits.items() if name not in query and name not in options}


class HandlerConnection(asyncpg.Connection):
    """A connection that records whether another handler may use it."""

    must_close = False  # a handler changed the driver's state, or the session's state is unknown
    begun_at: float | None = None  # when a transaction was begun ahead for the next handler
    login = ""  # the user that logged in; unknown behind a pooler

    @property
    def has_login_user(self) -> bool:
        """Whether the session has its login user. The server reports changes by SET SESSION AUTHORIZATION."""
        return bool(self.get_settings().session_authorization == self.login)


def _close_after(name: str) -> None:
    inherited = getattr(asyncpg.Connection, name)

    def call(self: HandlerConnection, *args: Any, **options: Any) -> Any:
        self.must_close = True
        return inherited(self, *args, **options)

    setattr(HandlerConnection, name, call)


for _name in dir(asyncpg.Connection):
    if not _name.startswith("_") and _name not in STATELESS:
        _close_after(_name)
