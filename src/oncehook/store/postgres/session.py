"""A handler's connection on PostgreSQL, and which of its methods leave something that no statement takes back.

What SQL leaves in a session is cleaned in the session itself, after every handler, whatever the handler sent: no
statement is judged by its text. What asyncpg keeps on its side of the connection (codecs, listeners, prepared
statements and cursors that a handler may hold on to) ends with the connection.

A worker whose host vanishes says no goodbye, and the server would keep its transactions and their locks for hours. So
the server is told when to give a session up, and sessions have their worker's name, by which `end_sessions` finds them.
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
"""Methods that change nothing in the driver. After any other, also one that a later asyncpg adds, it is closed."""


MARGIN = 10.0
"""Seconds by which a session outlives the longest handler, whose worker ends it in time."""

IDLE = "idle_in_transaction_session_timeout"


def session_name(worker: str) -> str:
    """The application_name of one worker's sessions, and of no other's, though PostgreSQL keeps only 63 bytes of it."""
    name = f"oncehook {worker}".rstrip()
    if name.isascii() and len(name) < 64:
        return name
    return f"oncehook {hashlib.sha256(worker.encode()).hexdigest()[:32]}"


def session_limits(address: str, lease: float, longest: float) -> dict[str, str]:
    """When the server gives up a session whose client is gone; without what the address itself says."""
    seconds = ceil(lease)
    limits = {
        IDLE: str(ceil((longest + MARGIN) * 1000)),
        "tcp_keepalives_idle": str(seconds),
        "tcp_keepalives_interval": str(ceil(seconds / 3)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(2 * seconds * 1000),
    }
    given = parse_qs(urlsplit(address).query)
    options = " ".join(given.get("options", []))
    return {name: value for name, value in limits.items() if name not in given and name not in options}


class HandlerConnection(asyncpg.Connection):
    """A connection that knows whether another handler may have it."""

    is_used_up = False  # a handler changed the driver's side of it, or it is not known what state it is in
    begun_at: float | None = None  # it waits for its next handler in a transaction, since then
    login = ""  # who logged in; behind a pooler that is not known

    @property
    def is_as_at_login(self) -> bool:
        """Whether no SET SESSION AUTHORIZATION is in force: the server reports it after every message."""
        return bool(self.get_settings().session_authorization == self.login)


def _uses_up(name: str) -> None:
    inherited = getattr(asyncpg.Connection, name)

    def used_up(self: HandlerConnection, *args: Any, **named: Any) -> Any:
        self.is_used_up = True
        return inherited(self, *args, **named)

    setattr(HandlerConnection, name, used_up)


for _name in dir(asyncpg.Connection):
    if not _name.startswith("_") and _name not in STATELESS:
        _uses_up(_name)
