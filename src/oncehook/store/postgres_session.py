"""A handler's session on PostgreSQL, and what its statements may leave in it for the next handler.

Cleaning costs more than a small handler's own work, so it is done where something may have been left. That nothing was
is known of plain statements only: those that read and write rows and call nothing but PostgreSQL's own pure functions.
What a trigger, a view, a default or an operator leaves is not looked for: it would leave it with every row.
"""

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any

import asyncpg


class Leaves(Enum):
    """What a statement may leave in its session."""

    NOTHING = 0
    SETTINGS = 1  # or locks, temporary tables and the like: there are statements that clean them away
    STATEMENTS = 2  # prepared ones, or none of those that were: the connection is of no more use


LONGEST = 10_000
"""A longer statement is not judged, and not remembered."""

ROWS = re.compile(r"\s*+(?:insert|update|delete|merge|select|with|values)\b[^;]*+;?+\s*+", re.IGNORECASE)
SAVEPOINT = re.compile(
    r"\s*(?:savepoint|release(?:\s+savepoint)?|rollback\s+to(?:\s+savepoint)?)\s+\w+\s*", re.IGNORECASE
)
STATEMENTS = re.compile(r"\b(?:prepare|deallocate|discard)\b", re.IGNORECASE)
HIDDEN = re.compile(r"--|/\*|\btemp(?:orary)?\b|pg_temp", re.IGNORECASE)
INTO = re.compile(r"\binto\s++[\w.]++\s*+\(", re.IGNORECASE)
CALLED = re.compile(r'((?:\.\s*+|(?<![\w$"]))[\w$"]++)\s*+\(')  # of `public.now(` it is `.now`, which is no word below
WORDS = """
    all and any array as between by case cast conflict distinct else except exists filter from group having ilike in
    intersect into is join lateral like limit materialized not offset on or over returning row select set some then
    union using values when where with
    abs array_agg avg clock_timestamp coalesce concat count date_trunc extract gen_random_uuid greatest jsonb_set
    json_build_object jsonb_build_object least length lower make_interval max md5 min now nullif replace round
    row_number statement_timestamp string_agg substring sum to_char to_json to_jsonb to_timestamp trim unnest upper
    bit char character decimal numeric time timestamp timestamptz varchar varying
"""
HARMLESS = frozenset(WORDS.split())
"""Words that may stand before a bracket: SQL's own, functions that only compute, types with a length."""


def leaves(statement: str) -> Leaves:
    """The most that this statement can leave in its session."""
    if len(statement) <= LONGEST:
        return _judged(statement)
    return Leaves.STATEMENTS if STATEMENTS.search(statement) else Leaves.SETTINGS


@lru_cache(maxsize=1024)
def _judged(statement: str) -> Leaves:
    """The loop waits for this: each expression passes over a text once, whatever is in it."""
    if STATEMENTS.search(statement):
        return Leaves.STATEMENTS
    if SAVEPOINT.fullmatch(statement):
        return Leaves.NOTHING
    if not ROWS.fullmatch(statement) or not statement.isascii() or HIDDEN.search(statement):
        return Leaves.SETTINGS
    called = CALLED.findall(INTO.sub("into (", statement).lower())
    return Leaves.NOTHING if HARMLESS.issuperset(called) else Leaves.SETTINGS


class HandlerConnection(asyncpg.Connection):
    """A connection that knows what the handlers that had it may have left in its session."""

    is_used_up = False  # a handler changed what no statement changes back: codecs, listeners, prepared statements
    is_clean = True
    begun_at: float | None = None  # it waits for its next handler in a transaction, since then
    marks_left: int | None = None  # how often the prepared mark can be used before it is prepared anew; None: not yet

    def ran(self, statement: str) -> None:
        left = leaves(statement)
        if left is not Leaves.NOTHING:
            self.is_clean = False
            self.is_used_up |= left is Leaves.STATEMENTS


def _noting(name: str, note: Callable[..., None]) -> None:
    inherited = getattr(asyncpg.Connection, name)

    def noted(self: HandlerConnection, *args: Any, **named: Any) -> Any:
        note(self, *args, **named)
        return inherited(self, *args, **named)

    setattr(HandlerConnection, name, noted)


def _runs(connection: HandlerConnection, *args: Any, **named: Any) -> None:
    connection.ran(args[0] if args else named.get("query", named.get("command", "")))


def _unsettles(connection: HandlerConnection, *args: Any, **named: Any) -> None:
    connection.is_clean = False


def _uses_up(connection: HandlerConnection, *args: Any, **named: Any) -> None:
    connection.is_used_up = True


for _name in ("execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval"):
    _noting(_name, _runs)
for _name in ("copy_from_query", "copy_from_table", "copy_records_to_table", "copy_to_table"):
    _noting(_name, _unsettles)
for _name in (
    "add_listener", "add_log_listener", "add_query_logger", "add_termination_listener", "cursor", "prepare",
    "reset_type_codec", "set_builtin_type_codec", "set_type_codec",
):  # fmt: skip
    _noting(_name, _uses_up)
