"""Rehearsal: runs a receipt's handler in a transaction that is always rolled back, and records every statement.

A rehearsal changes nothing in the database: no attempt is recorded and no status changes. Only work that goes through
`tx` is rolled back. Calls that the handler makes directly (HTTP, mail, another database) really happen.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncehook.concurrency.calling import Threads, error_summary
from oncehook.config.keyring import KeyRingError
from oncehook.effects.effect import EffectRegistry
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.event import BaseEvent
from oncehook.handlers.outbox import ONCE, Outbox
from oncehook.handlers.registry import Handler, Handlers, is_repeated
from oncehook.model.errors import OncehookError
from oncehook.model.event import facts_of
from oncehook.model.lease import Leased
from oncehook.model.receipt import Receipt, StoredPayload
from oncehook.objects.reference import ObjectError
from oncehook.store.store import Store
from oncehook.store.transaction import DriverTransaction, StatementSelector, Transaction

DIRECT_CALLS_NOTE = "Calls that a handler makes directly (HTTP, mail, another database) really happen."
_ENDS_TRANSACTION = re.compile(r"(?:^|;)\s*(?:commit|end|abort|rollback(?!\s+to\b)|prepare\s+transaction)\b", re.I)

_SAVEPOINT = re.compile(r"(?:SAVEPOINT|ROLLBACK\s+TO|RELEASE)\b", re.I)


class NotInRehearsal(OncehookError):
    """A rehearsed handler tried to end its own transaction."""


@dataclass(slots=True)
class Statement:
    """A statement that a handler ran. `rows` is the number of rows that it changed or returned, or None if unknown."""

    sql: str
    args: tuple[Any, ...]
    rows: int | None = None
    error: str | None = None
    undone: bool = False  # the handler rolled back its savepoint


@dataclass(slots=True)
class Rehearsal:
    """What a handler would do with a receipt.

    `statements` are the statements that it ran through `tx`, each with `sql`, `args`, `rows` and `error`. `effects` are
    the effects that it requested. `stale` are the entities whose recorded state is newer. `repeated` is true if
    `once_per` skipped the event.
    """

    receipt: int
    handler: str | None
    statements: list[Statement] = field(default_factory=list)
    error: str | None = None
    effects: list[dict[str, Any]] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)  # entities whose recorded state is newer
    repeated: bool = False  # another event with the same identity was handled

    def as_json(self) -> dict[str, Any]:
        statements = [{name: getattr(s, name) for name in Statement.__slots__} for s in self.statements]
        head = {"receipt": self.receipt, "handler": self.handler, "error": self.error}
        requests = {"effects": self.effects, "stale": self.stale, "repeated": self.repeated}
        return {**head, "statements": statements, **requests}


async def rehearse(
    store: Store,
    handlers: Handlers,
    receipt: Receipt,
    transaction: Callable[[], Any] | None = None,
    effects: EffectRegistry | None = None,
    canonical: CanonicalFetchers | None = None,
) -> Rehearsal:
    """Run the receipt's handler and roll back. An exception of the handler becomes the rehearsal's `error`.

    `transaction` makes the handler's transactions if they are not the store's: sessions on the user's engine.
    """
    handler = None if receipt.type is None else handlers.find(receipt.source, receipt.type, receipt.consumer)
    rehearsal = Rehearsal(receipt.receipt, handler.name if handler else None)
    try:
        payload = await store.receipts.payload(receipt.receipt)
    except (KeyRingError, ObjectError) as error:
        rehearsal.error = str(error)
        return rehearsal
    if payload is None:
        rehearsal.error = "the payload was pruned, so the handler cannot run"
    elif handler is not None and handler.forwards_to is None:  # a forward only makes its call, which a rehearsal skips
        record = SessionRecord(rehearsal.statements)
        recording = _recording(store, transaction, record)
        outbox = Outbox(
            lambda: recording,
            store.effects,
            effects or EffectRegistry(),
            canonical or CanonicalFetchers(),
            lambda outbox: None,  # a rehearsal never commits
        )
        try:
            event = handler.event_class(_as_leased(receipt, payload), outbox)
            await _handle(handlers, handler, event, outbox, rehearsal)
            await recording.flush()
        except Exception as error:  # any exception of the handler is a result
            rehearsal.error = error_summary(error)
            record.fail_running(rehearsal.error)
        finally:
            await asyncio.shield(outbox.rollback())
    return rehearsal


def _recording(store: Store, transaction: Callable[[], Any] | None, record: "SessionRecord") -> Any:
    if transaction is None:
        return RecordingTransaction(store.transaction(), record)
    recording = transaction()
    recording.watch(record.begin, record.end)
    return recording


async def _handle(handlers: Handlers, handler: Handler, event: BaseEvent, outbox: Outbox, rehearsal: Rehearsal) -> None:
    payloads = None if handler.payloads is None else handler.payloads.decode(event)
    rehearsal.repeated = await is_repeated(handler, event, outbox)
    threads = Threads(1, "oncehook-rehearsal")
    if not rehearsal.repeated:
        await handler.call([event] if handler.batch else event, outbox, threads, payloads)
    await handlers.project([event], outbox)
    await outbox.flush()
    for request in outbox.requests:
        if request.kind != ONCE:
            facts = {name: getattr(request, name) for name in ("key", "kind", "target")}
            arguments = msgspec.json.decode(request.args)
            rehearsal.effects.append({**facts, "args": arguments, "new": request.new, "status": request.status})
    rehearsal.stale += [noop.key for noop in outbox.noops if noop.reason == "stale"]


def _as_leased(receipt: Receipt, payload: StoredPayload) -> Leased:
    """Return the event as the first attempt after a replay would see it. No real lease has the number 0."""
    return Leased(
        **facts_of(receipt) | {"type": receipt.type or ""},
        consumer=receipt.consumer,
        receipt=receipt.receipt,
        lease=0,
        attempt=1,
        received_at=receipt.received_at,
        replays=receipt.replays + 1,
        body=payload.body,
        headers=msgspec.json.encode(payload.headers).decode(),
        object=None,
        is_encrypted=payload.is_encrypted,  # what is rolled back may still reach the disk
    )


class StatementRecord:
    """The statements of a handler, and which of them a savepoint undid."""

    def __init__(self, statements: list[Statement]) -> None:
        self.statements = statements
        self._savepoints: list[int] = []  # the number of statements before each savepoint

    def write(self, sql: str, args: tuple[Any, ...]) -> Statement | None:
        """Record a statement that is about to run. Returns None for savepoint commands."""
        savepoint = _SAVEPOINT.match(sql)
        if savepoint is not None:
            self._apply_savepoint(savepoint[0].upper())
            return None
        statement = Statement(sql.strip(), args)
        self.statements.append(statement)
        return statement

    def _apply_savepoint(self, command: str) -> None:
        """Track savepoints. Statements in a savepoint that is rolled back are undone."""
        if command == "SAVEPOINT":
            self._savepoints.append(len(self.statements))
        elif command == "RELEASE":
            self._savepoints.pop()
        else:
            for statement in self.statements[self._savepoints[-1] :]:
                statement.undone = True


class SessionRecord(StatementRecord):
    """Records the statements of a session, which reports the start and the successful end of each."""

    _running: Statement | None = None

    def begin(self, sql: str, args: tuple[Any, ...]) -> None:
        self.fail_running("it failed, and the handler continued")
        self._running = self.write(sql, args)

    def end(self, rows: int | None) -> None:
        if self._running is not None:
            self._running.rows = rows
        self._running = None

    def fail_running(self, error: str) -> None:
        if self._running is not None:
            self._running.error = error
        self._running = None


class RecordingTransaction(DriverTransaction):
    """A handler's transaction that records its statements and can only be rolled back."""

    def __init__(self, transaction: Transaction, record: StatementRecord) -> None:
        self._transaction = transaction
        self._record = record

    @property
    def used(self) -> bool:
        return self._transaction.used

    async def connection(self) -> "RecordingConnection":
        return RecordingConnection(await self._transaction.connection(), self._record)

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        return await self._transaction.run_query(select, parameters)  # Oncehook's query, not one of the handler

    async def settle(self, settled: Any) -> bool:
        await self.rollback()
        return False

    async def flush(self) -> None:
        """Do nothing: no statement is buffered."""

    async def rollback(self) -> None:
        await self._transaction.rollback()


class RecordingConnection:
    """A connection that records every statement and its row count."""

    def __init__(self, connection: Any, record: StatementRecord) -> None:
        self._connection = connection
        self._record = record

    async def execute(self, sql: Any, *args: Any, **options: Any) -> Any:
        with self._record_statement(sql, args) as statement:
            result = await self._connection.execute(sql, *args, **options)
            if statement is not None:
                statement.rows = row_count(result)
        return result

    async def executemany(self, sql: str, args: Any, **options: Any) -> Any:
        rows = [tuple(row) for row in args]
        with self._record_statement(sql, tuple(rows)):  # the driver does not report the number of rows
            return await self._connection.executemany(sql, rows, **options)

    async def fetch(self, sql: str, *args: Any, **options: Any) -> Any:
        with self._record_statement(sql, args) as statement:
            rows = await self._connection.fetch(sql, *args, **options)
            if statement is not None:
                statement.rows = len(rows)
        return rows

    async def fetchrow(self, sql: str, *args: Any, **options: Any) -> Any:
        """Call `fetch`, because the driver's `fetchrow` reports one row, however many an UPDATE … RETURNING changed."""
        rows = await self.fetch(sql, *args, **options)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: Any, column: int = 0, **options: Any) -> Any:
        row = await self.fetchrow(sql, *args, **options)
        return None if row is None else list(row.values())[column]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @contextmanager
    def _record_statement(self, sql: Any, args: tuple[Any, ...]) -> Iterator[Statement | None]:
        statement = self._record.write(str(sql), args)
        try:
            if statement is not None and _ENDS_TRANSACTION.search(statement.sql):
                raise NotInRehearsal(
                    "a handler must not end its own transaction: Oncehook commits it together with the processed status"
                )
            yield statement
        except Exception as error:
            if statement is not None:
                statement.error = error_summary(error)
            raise


def row_count(result: Any) -> int | None:
    """Return how many rows a statement changed, from the driver's result: 3, "UPDATE 3", or `rowcount`."""
    if isinstance(result, str):
        last = result.rpartition(" ")[2]
        return int(last) if last.isdigit() else None
    number = result if isinstance(result, int) else getattr(result, "rowcount", None)
    return number if isinstance(number, int) and number >= 0 else None
