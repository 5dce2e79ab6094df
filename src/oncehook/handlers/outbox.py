"""The outbox of one handler call: the handler's transaction, with the effects and entities that it records.

Effects, entities, the handler's writes and the processed status commit in one transaction, whether or not the handler
takes `tx`. Each method of an event returns a `DeferredCall`: an `async def` handler awaits it, and `wait_for` blocks
for it in the thread of a plain handler.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oncehook.concurrency.calling import Function, await_or_block
from oncehook.effects.effect import BROKER_TOPIC, TOPIC, EffectRefused, EffectRegistry, check_broker_target, encode
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.order import Advance, make_order_key, order_key_of
from oncehook.model.errors import OncehookError
from oncehook.model.lease import Leased, Settled
from oncehook.providers.expressions import index_text, is_storable
from oncehook.store.protocols import EffectStore
from oncehook.store.transaction import StatementSelector, Transaction, TransactionClosed

ONCE = "once"
"""The kind of a row that records a `once_per` identity: the relay has nothing to call for it."""

ENDED = "a method of the event was called after its handler had ended: await every call inside the handler"

T = TypeVar("T")


class NotAwaited(OncehookError):
    """A handler did not await a call whose result it needs to decide how to continue."""


class AlreadyHandled(Exception):
    """Another event of the same `once_per` identity was handled first."""

    def __init__(self, request: "EffectRequest") -> None:
        super().__init__(request.key)
        self.request = request


@dataclass(slots=True, kw_only=True, eq=False)
class EffectRequest:
    """One effect that a handler requests, and whether its key is new."""

    leased: Leased
    scope: str
    key: str
    kind: str
    target: str
    args: str
    new: bool | None = None  # None: not written yet
    status: str | None = None  # of the effect that already has the key

    @property
    def scoped_key(self) -> tuple[str, str]:
        return self.scope, self.key

    @property
    def call(self) -> tuple[str, str, str]:
        return self.kind, self.target, self.args

    def row(self) -> dict[str, Any]:
        names = ("scope", "key", "kind", "target", "args")
        facts = {name: getattr(self, name) for name in names}
        return {**facts, "source": self.leased.source, "receipt": self.leased.receipt}


@dataclass(slots=True)
class Noop:
    """A request that changed nothing: its effect key was already recorded ("effect"), or it was stale ("stale")."""

    leased: Leased
    reason: str
    scope: str
    key: str

    def row(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("reason", "scope", "key")}
        return {**facts, "source": self.leased.source, "receipt": self.leased.receipt}


class DeferredCall(Coroutine[Any, Any, T], Generic[T]):
    """A call of an event's method, which runs when it is awaited: at most once, in any event loop.

    Using it as a boolean raises NotAwaited, because an `if` without `await` would always be true.
    """

    def __init__(self, outbox: "Outbox", method: str, run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._outbox = outbox
        self._run = run
        self._steps: Generator[Any, Any, T] | None = None
        self.method = method

    def __await__(self) -> Generator[Any, Any, T]:
        self._outbox.not_awaited.discard(self)
        running = asyncio.get_running_loop()
        if running is self._outbox.loop:
            return self._run().__await__()
        result = asyncio.run_coroutine_threadsafe(self._run(), self._outbox.loop)
        return asyncio.wrap_future(result, loop=running).__await__()

    def __bool__(self) -> bool:
        raise NotAwaited(f"event.{self.method}(…) was not awaited: write `await event.{self.method}(…)`")

    # asyncio.gather, create_task and similar functions run a coroutine with these methods.

    def send(self, value: Any, /) -> Any:
        return self._start().send(value)

    def throw(self, *error: Any) -> Any:
        return self._start().throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def _start(self) -> Generator[Any, Any, T]:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps


class Outbox:
    """A handler's Transaction. Effects that the handler did not await are written before the processed status."""

    def __init__(
        self,
        begin: Callable[[], Transaction],
        store: EffectStore,
        effects: EffectRegistry,
        canonical: CanonicalFetchers,
        committed: Callable[["Outbox"], None],
    ) -> None:
        self._begin = begin
        self._transaction = begin()
        self._store = store
        self._effects = effects
        self._canonical = canonical
        self._committed = committed
        self.loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._pending: list[EffectRequest] = []
        self._once: EffectRequest | None = None  # written last, so that a conflict cannot interrupt the handler
        self._skipped: list[Noop] = []  # written with the processed status
        self._fetched: dict[int, Any] = {}
        self._ended = False
        self.project_again: Callable[[], Awaitable[None]] | None = None  # for a transaction that begins again
        self.not_awaited: set[DeferredCall[Any]] = set()
        self.requests: list[EffectRequest] = []
        self.noops: list[Noop] = []

    # -- a transaction --------------------------------------------------------------------------------------------

    @property
    def used(self) -> bool:
        return self._transaction.used or bool(self._pending or self._once or self._skipped or self.not_awaited)

    async def connection(self) -> Any:
        return await self._transaction.connection()

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        return await self._transaction.run_query(select, parameters)

    def bind(self, function: Function) -> Function:
        return self._transaction.bind(function)

    def make_tx(self, *, is_async: bool) -> Any:
        return self._transaction.make_tx(is_async=is_async)

    def close_tx(self) -> None:
        self._ended = True
        self._transaction.close_tx()

    async def rollback(self) -> None:
        self._ended = True
        await self._transaction.rollback()

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Write all requests and the processed status, and commit. Returns False if the lease was lost.

        If another event of the same `once_per` identity was first, the handler's work is rolled back, and only the
        status, the noop and the projection are written.
        """
        try:
            await self.flush()
        except AlreadyHandled as error:
            await self._begin_again(error.request)
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        landed = await self._transaction.settle(settled)
        if landed:
            self._committed(self)
        return landed

    async def _begin_again(self, request: EffectRequest) -> None:
        await self._transaction.rollback()
        self._transaction = self._begin()
        self.requests, self.noops = [], []
        try:
            if self.project_again is not None:
                await self.project_again()
            await self._record_noops([Noop(request.leased, "effect", *request.scoped_key)])
        except BaseException:
            await asyncio.shield(self.rollback())
            raise

    async def flush(self) -> None:
        """Write the effects that the handler did not await. Raises NotAwaited for a call whose result it needs."""
        if self.not_awaited:
            method = next(iter(self.not_awaited)).method
            raise NotAwaited(f"event.{method}(…) was not awaited: its result decides what the handler has to do")
        if self._pending:
            await self._write()
        if self._once is not None:
            self._pending.append(self._once)
            self._once = None
            await self._write()
        skipped, self._skipped = self._skipped, []
        if skipped:
            await self._record_noops(skipped)

    # -- effects --------------------------------------------------------------------------------------------------

    def effect(
        self, leased: Leased, key: str, target: Function | str, args: dict[str, Any], scope: str | None
    ) -> DeferredCall[bool]:
        kind, name = self._effects.resolve(target, args)
        return self._request(leased, key, method="effect", kind=kind, target=name, args=encode(args), scope=scope)

    def publish(
        self, leased: Leased, topic: str, payload: Any, key: str | None, scope: str | None
    ) -> DeferredCall[bool]:
        if not isinstance(topic, str) or not topic or not is_storable(topic):
            raise EffectRefused(f"the topic is {topic!r}: pass a non-empty string")
        kind = TOPIC if check_broker_target(topic) is None else BROKER_TOPIC
        args = encode({"payload": payload}, "message")
        key = key or f"{topic}:{leased.event_id}"
        return self._request(leased, key, method="publish", kind=kind, target=topic, args=args, scope=scope)

    def enqueue(
        self, leased: Leased, call: tuple[object, tuple[Any, ...], dict[str, Any]], key: str | None, scope: str | None
    ) -> DeferredCall[bool]:
        kind, target, args = self._effects.resolve_task(*call)
        key = key or f"{target}:{leased.event_id}"
        return self._request(leased, key, method="enqueue", kind=kind, target=target, args=args, scope=scope)

    def _request(
        self, leased: Leased, key: str, *, method: str, kind: str, target: str, args: str, scope: str | None
    ) -> DeferredCall[bool]:
        self._check_open()
        for name, value in (("key", key), ("scope", scope or leased.scope)):
            if not isinstance(value, str) or not value:
                raise EffectRefused(f"the effect's {name} is {value!r}: pass a non-empty string, such as mail:in_123")
        request = EffectRequest(
            leased=leased,
            scope=index_text(scope or leased.scope) or "",
            key=index_text(key) or "",
            kind=kind,
            target=target,
            args=args,
        )
        self._pending.append(request)
        return DeferredCall(self, method, lambda: self._write_request(request))

    async def _write_request(self, request: EffectRequest) -> bool:
        await self._write()
        return bool(request.new)

    async def _write(self) -> None:
        async with self._writing:
            requests = list(self._pending)
            if not requests:
                return
            parameters = json.dumps([self._row(request) for request in requests])
            new_keys = {
                (scope, key) for scope, key in await self.run_query(lambda sql: sql["record_effects"], parameters)
            }
            for request in requests:
                request.new = request.scoped_key in new_keys
                new_keys.discard(request.scoped_key)
            repeated = [request for request in requests if not request.new]
            if repeated:
                await self._handle_repeated(repeated)
            del self._pending[: len(requests)]
            self.requests += requests

    def _row(self, request: EffectRequest) -> dict[str, Any]:
        args = self._store.args_to_store(request.leased, request.scope, request.key, request.args)
        return {**request.row(), "args": args}

    async def _handle_repeated(self, repeated: list[EffectRequest]) -> None:
        """Record a noop for each request whose key was already recorded. Raises AlreadyHandled for `once_per`."""
        parameters = json.dumps([{"scope": request.scope, "key": request.key} for request in repeated])
        rows = await self.run_query(lambda sql: sql["existing_effects"], parameters)
        recorded = {(scope, key): (status, receipt) for scope, key, status, receipt in rows}
        conflicts = []
        for request in repeated:
            request.status, receipt = recorded.get(request.scoped_key, (None, None))
            self._check_unique(request)
            if request.kind != ONCE:
                conflicts.append(Noop(request.leased, "effect", *request.scoped_key))
            elif receipt != request.leased.receipt:
                raise AlreadyHandled(request)
        if conflicts:
            await self._record_noops(conflicts)

    def _check_unique(self, request: EffectRequest) -> None:
        """Raise EffectRefused if one handler call requests two different effects with the same key.

        Otherwise the second one would be lost without an error.
        """
        for other in (*self.requests, *self._pending):
            if other.new and other.scoped_key == request.scoped_key and other.call != request.call:
                raise EffectRefused(
                    f"the handler requested two different effects with the key {request.key!r}: use a different key "
                    "for each"
                )

    async def _record_noops(self, noops: list[Noop]) -> None:
        await self.run_query(lambda sql: sql["note_noops"], json.dumps([noop.row() for noop in noops]))
        self.noops += noops

    # -- once per identity ----------------------------------------------------------------------------------------

    async def is_repeated(self, leased: Leased, key: str) -> bool:
        """Return whether another event of the same `once_per` identity was already handled.

        This only reads, so that a handler that first waits on the network holds no lock. The row is written with the
        processed status. If another event is recorded in between, the work of this handler is rolled back.
        """
        receipt = await self._store.recorded_by(leased.scope, key)
        if receipt is not None and receipt != leased.receipt:
            self._skipped.append(Noop(leased, "effect", leased.scope, key))
            return True
        self._once = EffectRequest(leased=leased, scope=leased.scope, key=key, kind=ONCE, target=ONCE, args="{}")
        return False

    # -- entities -------------------------------------------------------------------------------------------------

    def advance(self, leased: Leased, advance: Advance) -> DeferredCall[bool]:
        return self._defer("advance", lambda: self._advance(leased, advance))

    async def _advance(self, leased: Leased, advance: Advance) -> bool:
        moved = await self.run_query(lambda sql: sql["advance"], json.dumps(advance.as_json()))
        if not moved:
            await self._record_noops([Noop(leased, "stale", advance.scope, advance.key)])
        return bool(moved)

    def is_stale(self, advance: Advance) -> DeferredCall[bool]:
        return self._defer("is_stale", lambda: self._is_stale(advance))

    async def _is_stale(self, advance: Advance) -> bool:
        if self._transaction.used:
            rows = await self.run_query(lambda sql: sql["entity"], json.dumps(advance.as_json()))
            newest = order_key_of(rows[0]) if rows else None
        else:
            row = await self._store.entity(advance.scope, advance.kind, advance.id)
            newest = make_order_key(row.is_terminal, row.at, row.version, row.event_id) if row else None
        return newest is not None and advance.order_key < newest

    # -- canonical objects ----------------------------------------------------------------------------------------

    def canonical(self, leased: Leased, event: Any) -> DeferredCall[Any]:
        return self._defer("canonical", lambda: self._fetch(leased, event))

    async def _fetch(self, leased: Leased, event: Any) -> Any:
        if leased.receipt not in self._fetched:
            if self._transaction.used:
                raise TransactionClosed(
                    "call event.canonical() before the first use of tx, effects or entities: no transaction may be "
                    "open during a request to the provider"
                )
            self._fetched[leased.receipt] = await self._canonical.fetch(leased.source, event)
        return self._fetched[leased.receipt]

    # -- calls in a loop or in a thread ---------------------------------------------------------------------------

    def _defer(self, method: str, run: Callable[[], Coroutine[Any, Any, T]]) -> DeferredCall[T]:
        """Return a call that the handler must await."""
        self._check_open()
        call = DeferredCall(self, method, run)
        self.not_awaited.add(call)
        return call

    def wait_for(self, call: DeferredCall[T]) -> T:
        """Block a handler's thread until the call has a result.

        In an event loop, where it must not block, it returns an awaitable instead. That happens if a plain function
        returns the coroutine of an `async def` that it wraps.
        """
        result: T = await_or_block(call, self.loop)
        return result

    def _check_open(self) -> None:
        if self._ended:
            raise TransactionClosed(ENDED)
