"""Rehearsal: a receipt's handler runs in a transaction that is always rolled back, and every statement is written down.

It leaves nothing in the database: no attempt, no change of state. Only what goes through `tx` can be taken back: a call
that the handler makes itself (HTTP, mail, another database) is really made.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncehook.concurrency.calling import Threads, error_summary
from oncehook.effects.effect import EffectRegistry
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.event import BaseEvent
from oncehook.handlers.outbox import ONCE, Outbox
from oncehook.handlers.registry import Handler, Handlers, is_repeated
from oncehook.model.errors import OncehookError
from oncehook.model.event import facts_of
from oncehook.model.lease import Leased
from oncehook.model.receipt import Receipt, StoredPayload
from oncehook.store.store import Store
from oncehook.store.transaction import DriverTransaction, StatementSelector, Transaction

REALLY_MADE = "Calls that a handler makes itself (HTTP, mail, another database) are really made."
_ENDS_TRANSACTION = re.compile(r"(?:^|;)\s*(?:commit|end|abort|rollback(?!\s+to\b)|prepare\s+transaction)\b", re.I)

_SAVEPOINT = re.compile(r"(?:SAVEPOINT|ROLLBACK\s+TO|RELEASE)\b", re.I)


class NotInRehearsal(OncehookError):
    """A rehearsed handler tried to end its transaction itself."""


@dataclass(slots=True)
class Statement:
    """One statement that a handler ran: how many rows it changed or returned, None where the database does not say."""

    sql: str
    args: tuple[Any, ...]
    rows: int | None = None
    error: str | None = None
    undone: bool = False  # its savepoint was rolled back by the handler


@dataclass(slots=True)
class Rehearsal:
    """What a handler would do with a receipt.

    `statements` are those that it ran through `tx`, each with `sql`, `args`, `rows` and `error`. `effects` are the
    requested ones, `stale` the entities whose known state is newer. `repeated` is true if `once_per` skipped it.
    """

    receipt: int
    handler: str | None
    statements: list[Statement] = field(default_factory=list)
    error: str | None = None
    effects: list[dict[str, Any]] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)  # entities of which newer is known
    repeated: bool = False  # another event of the same identity was handled

    def as_json(self) -> dict[str, Any]:
        statements = [{name: getattr(s, name) for name in Statement.__slots__} for s in self.statements]
        asked = {"effects": self.effects, "stale": self.stale, "repeated": self.repeated}
        named = {"receipt": self.receipt, "handler": self.handler, "error": self.error}
        return {**named, "statements": statements, **asked}


async def rehearse(
    store: Store,
    handlers: Handlers,
    receipt: Receipt,
    transaction: Callable[[], Any] | None = None,
    effects: EffectRegistry | None = None,
    canonical: CanonicalFetchers | None = None,
) -> Rehearsal:
    """Run the receipt's handler and roll back. A handler that fails is no error here: that is what it is for.

    `transaction` makes those that handlers get, where they are not the store's own: sessions on the user's engine.
    """
    handler = None if receipt.type is None else handlers.find(receipt.source, receipt.type)
    rehearsal = Rehearsal(receipt.receipt, handler.name if handler else None)
    payload = await store.receipts.payload(receipt.receipt)
    if payload is None:
        rehearsal.error = "the payload was pruned: there is nothing to hand to a handler"
    elif handler is not None and handler.forwards_to is None:  # a forward has only its call, which is not made
        watch = Watch(rehearsal.statements)
        recording = _recording(store, transaction, watch)
        outbox = Outbox(
            lambda: recording,
            store.effects,
            effects or EffectRegistry(),
            canonical or CanonicalFetchers(),
            lambda outbox: None,  # nothing is ever committed here
        )
        try:
            event = handler.event_class(_as_leased(receipt, payload), outbox)
            await _handle(handlers, handler, event, outbox, rehearsal)
            await recording.flush()
        except Exception as error:  # whatever the user's code raises is the result
            rehearsal.error = error_summary(error)
            watch.failed(rehearsal.error)
        finally:
            await asyncio.shield(outbox.rollback())
    return rehearsal


def _recording(store: Store, transaction: Callable[[], Any] | None, watch: "Watch") -> Any:
    if transaction is None:
        return Recording(store.transaction(), watch)
    recording = transaction()
    recording.watch(watch.begins, watch.ends)
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
    """The event as the first attempt after a replay would see it; no lease has the number 0."""
    return Leased(
        **facts_of(receipt) | {"type": receipt.type or ""},
        receipt=receipt.receipt,
        lease=0,
        attempt=1,
        received_at=receipt.received_at,
        replays=receipt.replays + 1,
        body=payload.body,
        headers=msgspec.json.encode(payload.headers).decode(),
    )


class Record:
    """What was run, and what of it a savepoint took back."""

    def __init__(self, statements: list[Statement]) -> None:
        self.statements = statements
        self._savepoints: list[int] = []  # how many statements there were when each was set

    def write(self, sql: str, args: tuple[Any, ...]) -> Statement | None:
        """A statement that is about to be run; None for what belongs to a savepoint."""
        savepoint = _SAVEPOINT.match(sql)
        if savepoint is not None:
            self._mark(savepoint[0].upper())
            return None
        statement = Statement(sql.strip(), args)
        self.statements.append(statement)
        return statement

    def _mark(self, word: str) -> None:
        """What was run in a savepoint that the handler rolled back is undone."""
        if word == "SAVEPOINT":
            self._savepoints.append(len(self.statements))
        elif word == "RELEASE":
            self._savepoints.pop()
        else:
            for statement in self.statements[self._savepoints[-1] :]:
                statement.undone = True


class Watch(Record):
    """The same for a session, which tells when a statement begins and when it has ended well."""

    _under_way: Statement | None = None

    def begins(self, sql: str, args: tuple[Any, ...]) -> None:
        self.failed("it failed, and the handler went on")
        self._under_way = self.write(sql, args)

    def ends(self, rows: int | None) -> None:
        if self._under_way is not None:
            self._under_way.rows = rows
        self._under_way = None

    def failed(self, error: str) -> None:
        if self._under_way is not None:
            self._under_way.error = error
        self._under_way = None


class Recording(DriverTransaction):
    """A handler's transaction that writes down what is run in it, and can only be rolled back."""

    def __init__(self, transaction: Transaction, record: Record) -> None:
        self._transaction = transaction
        self._record = record

    @property
    def used(self) -> bool:
        return self._transaction.used

    async def connection(self) -> "Recorder":
        return Recorder(await self._transaction.connection(), self._record)

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        return await self._transaction.run_query(select, parameters)  # ours, and no statement of the handler's

    async def settle(self, settled: Any) -> bool:
        await self.rollback()
        return False

    async def flush(self) -> None:
        """Nothing waits here to be sent."""

    async def rollback(self) -> None:
        await self._transaction.rollback()


class Recorder:
    """The connection, with every statement and its row count written down."""

    def __init__(self, connection: Any, record: Record) -> None:
        self._connection = connection
        self._record = record

    async def execute(self, sql: Any, *args: Any, **named: Any) -> Any:
        with self._written(sql, args) as statement:
            result = await self._connection.execute(sql, *args, **named)
            if statement is not None:
                statement.rows = counted(result)
        return result

    async def executemany(self, sql: str, args: Any, **named: Any) -> Any:
        rows = [tuple(row) for row in args]
        with self._written(sql, tuple(rows)):  # the driver does not say how many rows it changed
            return await self._connection.executemany(sql, rows, **named)

    async def fetch(self, sql: str, *args: Any, **named: Any) -> Any:
        with self._written(sql, args) as statement:
            rows = await self._connection.fetch(sql, *args, **named)
            if statement is not None:
                statement.rows = len(rows)
        return rows

    async def fetchrow(self, sql: str, *args: Any, **named: Any) -> Any:
        """By `fetch`: the driver's own would say one row, however many an UPDATE … RETURNING changed."""
        rows = await self.fetch(sql, *args, **named)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: Any, column: int = 0, **named: Any) -> Any:
        row = await self.fetchrow(sql, *args, **named)
        return None if row is None else list(row.values())[column]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @contextmanager
    def _written(self, sql: Any, args: tuple[Any, ...]) -> Iterator[Statement | None]:
        statement = self._record.write(str(sql), args)
        try:
            if statement is not None and _ENDS_TRANSACTION.search(statement.sql):
                raise NotInRehearsal("a handler must not end its own transaction: Oncehook commits it with the mark")
            yield statement
        except Exception as error:
            if statement is not None:
                statement.error = error_summary(error)
            raise


def counted(result: Any) -> int | None:
    """How many rows a statement changed, as each driver says it: 3, "UPDATE 3", or a result's `rowcount`."""
    if isinstance(result, str):
        last = result.rpartition(" ")[2]
        return int(last) if last.isdigit() else None
    number = result if isinstance(result, int) else getattr(result, "rowcount", None)
    return number if isinstance(number, int) and number >= 0 else None
