"""Installs a crash point in this process: wraps the function or the statements where it is.

Only a process that a test started for this purpose calls `install`. Nothing undoes it.
"""

import asyncio
import asyncio.selector_events
import importlib
import inspect
import re
import sqlite3
from collections.abc import Callable
from typing import Any

from oncehook.store import queries
from oncehook.testing.crash_points import AFTER, BEFORE, SENT, Call, CrashPoint, InHandler, Statement

Fault = Callable[[], None]
"""What happens at the point, once. It may not return."""


_VARIABLE = re.compile(r":\w+|\{[^}]*\}|\$\d+|--\? \w+|^--.*$", re.MULTILINE)
"""What differs between a query in its file and the statement that is sent."""


class Trigger:
    """Causes the fault, the first time that the point is reached after `arm`."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.is_armed = False
        self.has_fired = False
        self.transport: Any = None  # on which the next bytes are those of the point
        self.writes_half = False

    def fire(self) -> None:
        """Cause the fault, unless it has happened."""
        if self.is_armed and not self.has_fired:
            self.has_fired = True
            self._fault()


def install(point: CrashPoint, dialect: str, fault: Fault) -> tuple[Trigger, Callable[[str], None]]:
    """Wrap the place of a point. Returns its trigger, and what the test's handler calls at each of its steps."""
    where, trigger = point.where(dialect), Trigger(fault)
    if isinstance(where, str):
        raise ValueError(f"{point.name} does not exist on {dialect}: {where}")
    if isinstance(where, Call):
        _wrap_call(where, trigger)
    elif isinstance(where, Statement) and dialect == "sqlite":
        _wrap_sqlite(where, trigger)
    elif isinstance(where, Statement):
        _wrap_postgres(_marker(dialect, where.query), where, trigger)
    if not isinstance(where, InHandler) and where.when == SENT:
        _wrap_transport(trigger)
    step = where.step if isinstance(where, InHandler) else ""

    def reach(name: str) -> None:
        if name == step:
            trigger.fire()

    return trigger, reach


# -- calls -------------------------------------------------------------------------------------------------------------


def _wrap_call(where: Call, trigger: Trigger) -> None:
    module, _, name = where.path.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, attribute = name.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = getattr(owner, attribute)

    def applies(arguments: Any) -> bool:
        return not where.contains or where.contains in repr(arguments)

    async def call_async(*args: Any, **options: Any) -> Any:
        if where.when == BEFORE and applies(args):
            trigger.fire()
        result = await original(*args, **options)
        if where.when == AFTER and applies(args) and (result or not where.needs_result):
            trigger.fire()
        return result

    def call(*args: Any, **options: Any) -> Any:
        if where.when == BEFORE and applies(args):
            trigger.fire()
        if where.when == SENT:
            trigger.transport, trigger.writes_half = args[0].transport, True
        result = original(*args, **options)
        if where.when == AFTER and applies(args):
            trigger.fire()
        return result

    setattr(owner, attribute, call_async if inspect.iscoroutinefunction(original) else call)


# -- statements --------------------------------------------------------------------------------------------------------


def _marker(dialect: str, query: str) -> str:
    """Return the longest part of a query that no parameter changes. A statement that contains it is this query."""
    if query not in queries.load(dialect):
        return query
    return max((part.strip() for part in _VARIABLE.split(queries.load(dialect)[query])), key=len)


def _wrap_postgres(marker: str, where: Statement, trigger: Trigger) -> None:
    connection: Any = importlib.import_module("asyncpg").Connection

    def wrap(original: Any) -> Any:
        async def run(self: Any, query: str, *args: Any, **options: Any) -> Any:
            if marker not in query:
                return await original(self, query, *args, **options)
            if where.when == BEFORE:
                trigger.fire()
            if where.when == SENT:
                trigger.transport = self._transport
            result = await original(self, query, *args, **options)
            if where.when == AFTER and (result or not where.needs_rows):
                trigger.fire()
            return result

        return run

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        setattr(connection, name, wrap(getattr(connection, name)))


def _wrap_transport(trigger: Trigger) -> None:
    """Fire when the bytes of the point are written: a whole message to PostgreSQL, or half of a response."""
    transport: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    original = transport.write

    def write(self: Any, data: Any) -> None:
        data = bytes(data)
        if self is not trigger.transport or (not trigger.writes_half and data[:1] not in (b"B", b"Q")):
            original(self, data)
            return
        trigger.transport = None
        size = len(data) // 2 if trigger.writes_half else len(data)
        original(self, data[:size])
        trigger.fire()
        original(self, data[size:])

    transport.write = write


def _wrap_sqlite(where: Statement, trigger: Trigger) -> None:
    connect = sqlite3.connect
    marker = _marker("sqlite", where.query)
    earlier = None if where.follows is None else _marker("sqlite", where.follows)

    def is_reached(connection: Any, sql: str) -> bool:
        """Whether a statement is that of the point, in a transaction that has changed rows if it must have."""
        if marker not in sql:
            return False
        is_later = earlier is None or any(earlier in text for text in connection.texts)
        return is_later and (earlier is None or connection.total_changes > connection.changes_before)

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = ()) -> Any:
            connection: Any = self.connection
            if sql.startswith("BEGIN"):
                connection.texts, connection.changes_before = [], connection.total_changes
            reached = is_reached(connection, sql)
            if reached and where.when == BEFORE:
                trigger.fire()
            result = super().execute(sql, parameters)
            connection.texts.append(sql)
            if reached and where.when == AFTER:
                trigger.fire()
            return result

    def instrument(kind: Any) -> Any:
        class Connection(kind):  # type: ignore[misc]
            texts: list[str] = []  # noqa: RUF012  # replaced by each BEGIN
            changes_before = 0

            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def execute(self, sql: str, parameters: Any = ()) -> Any:
                return self.cursor().execute(sql, parameters)

        return Connection

    def connect_instrumented(*args: Any, **options: Any) -> Any:
        return connect(*args, **{**options, "factory": instrument(options.get("factory", sqlite3.Connection))})

    sqlite3.connect = connect_instrumented
