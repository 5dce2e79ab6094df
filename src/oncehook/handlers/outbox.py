"""The outbox of one call of a handler: its transaction, with what it asks for written in it.

Effects, entities and the handler's work are one transaction with the mark, whether or not the handler takes `tx`.
Each verb gives an `Answer`: an `async def` handler awaits it, and `wait_for` blocks for it in a handler's thread.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oncehook.concurrency.calling import Function, in_its_way
from oncehook.effects.effect import TOPIC, EffectRefused, Effects, encode
from oncehook.handlers.canonical import Canonical
from oncehook.handlers.order import Advance, Place, place
from oncehook.model.errors import OncehookError
from oncehook.model.lease import Leased, Settled
from oncehook.providers.expressions import indexed, is_storable, moment
from oncehook.store.protocols import EffectStore
from oncehook.store.transaction import Pick, Transaction, TransactionClosed

ONCE = "once"
"""The kind of a row that stands for a handler's work: it is recorded, and there is nothing to perform."""

ENDED = "the event was asked for something after its handler had ended: await everything inside the handler"


T = TypeVar("T")


class NotAwaited(OncehookError):
    """A handler ended without having awaited what decides over its work."""


class Repeated(Exception):
    """Another event has done what this handler does once."""

    def __init__(self, ask: "Ask") -> None:
        super().__init__(ask.key)
        self.ask = ask


@dataclass(slots=True, kw_only=True, eq=False)
class Ask:
    """One effect that a handler asks for, and what became of it."""

    leased: Leased
    scope: str
    key: str
    kind: str
    target: str
    args: str
    new: bool | None = None  # None: not written yet
    status: str | None = None  # of the one that was recorded before

    @property
    def at(self) -> tuple[str, str]:
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
    """What an event asked for and did not get: `reason` is "effect" or "stale"."""

    leased: Leased
    reason: str
    scope: str
    key: str

    def row(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("reason", "scope", "key")}
        return {**facts, "source": self.leased.source, "receipt": self.leased.receipt}


class Answer(Coroutine[Any, Any, T], Generic[T]):
    """The answer to a verb, once it is awaited: at most once, in any loop. It cannot be tested as true or false."""

    def __init__(self, outbox: "Outbox", verb: str, run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._outbox = outbox
        self._run = run
        self._steps: Generator[Any, Any, T] | None = None
        self.verb = verb

    def __await__(self) -> Generator[Any, Any, T]:
        self._outbox.unanswered.discard(self)
        running = asyncio.get_running_loop()
        if running is self._outbox.loop:
            return self._run().__await__()
        elsewhere = asyncio.run_coroutine_threadsafe(self._run(), self._outbox.loop)
        return asyncio.wrap_future(elsewhere, loop=running).__await__()

    def __bool__(self) -> bool:
        raise NotAwaited(f"event.{self.verb}(…) was not awaited: write `await event.{self.verb}(…)`")

    # For asyncio.gather, create_task and others that run a coroutine themselves

    def send(self, value: Any, /) -> Any:
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:
        return self._started().throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def _started(self) -> Generator[Any, Any, T]:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps


class Outbox:
    """A handler's Transaction. What it asks for and nobody awaited is written before the mark."""

    def __init__(
        self,
        begin: Callable[[], Transaction],
        store: EffectStore,
        effects: Effects,
        canonical: Canonical,
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
        self._pending: list[Ask] = []
        self._once: Ask | None = None  # written last: another event that has it ends this one's work, not its handler
        self._skipped: list[Noop] = []  # to be noted with the mark
        self._fetched: dict[int, Any] = {}
        self._ended = False
        self.project_again: Callable[[], Awaitable[None]] | None = None  # even if the handler's work is not kept
        self.unanswered: set[Answer[Any]] = set()
        self.asks: list[Ask] = []
        self.noops: list[Noop] = []

    # -- a transaction --------------------------------------------------------------------------------------------

    @property
    def used(self) -> bool:
        return self._transaction.used or bool(self._pending or self._once or self._skipped or self.unanswered)

    async def connection(self) -> Any:
        return await self._transaction.connection()

    async def ask(self, pick: Pick, given: str) -> list[Any]:
        return await self._transaction.ask(pick, given)

    def offer(self, *, is_async: bool) -> Any:
        return self._transaction.offer(is_async=is_async)

    def withdraw(self) -> None:
        self._ended = True
        self._transaction.withdraw()

    async def rollback(self) -> None:
        self._ended = True
        await self._transaction.rollback()

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """The marks with all that was asked for. Where another event was first, the mark, and that it was so.

        A projection is kept in either case.
        """
        try:
            await self.flush()
        except Repeated as repeated:
            await self._begin_again(repeated.ask)
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        landed = await self._transaction.settle(settled)
        if landed:
            self._committed(self)
        return landed

    async def _begin_again(self, ask: Ask) -> None:
        await self._transaction.rollback()
        self._transaction = self._begin()
        self.asks, self.noops = [], []
        try:
            if self.project_again is not None:
                await self.project_again()
            await self._note([Noop(ask.leased, "effect", *ask.at)])
        except BaseException:
            await asyncio.shield(self.rollback())
            raise

    async def flush(self) -> None:
        """Write what nobody awaited. An effect may be left so; what decides over the work may not."""
        if self.unanswered:
            verb = next(iter(self.unanswered)).verb
            raise NotAwaited(f"event.{verb}(…) was not awaited: its answer says what the handler is to do")
        if self._pending:
            await self._write()
        if self._once is not None:
            self._pending.append(self._once)
            self._once = None
            await self._write()
        skipped, self._skipped = self._skipped, []
        if skipped:
            await self._note(skipped)

    # -- effects --------------------------------------------------------------------------------------------------

    def effect(
        self, leased: Leased, key: str, what: Function | str, args: dict[str, Any], scope: str | None
    ) -> Answer[bool]:
        kind, target = self._effects.resolve(what, args)
        return self._request(leased, key, kind=kind, target=target, args=encode(args), scope=scope)

    def publish(self, leased: Leased, topic: str, payload: Any, key: str | None, scope: str | None) -> Answer[bool]:
        if not isinstance(topic, str) or not topic or not is_storable(topic):
            raise EffectRefused(f"the topic is {topic!r}: give a text")
        args = encode({"payload": payload}, "message")
        key = key or f"{topic}:{leased.event_id}"
        return self._request(leased, key, kind=TOPIC, target=topic, args=args, scope=scope)

    def _request(
        self, leased: Leased, key: str, *, kind: str, target: str, args: str, scope: str | None
    ) -> Answer[bool]:
        self._check_open()
        for name, value in (("key", key), ("scope", scope or leased.source)):
            if not isinstance(value, str) or not value:
                raise EffectRefused(f"the effect's {name} is {value!r}: give a text that names it, such as mail:in_123")
        ask = Ask(
            leased=leased,
            scope=indexed(scope or leased.source) or "",
            key=indexed(key) or "",
            kind=kind,
            target=target,
            args=args,
        )
        self._pending.append(ask)
        return Answer(self, "publish" if kind == TOPIC else "effect", lambda: self._ask_and_tell(ask))

    async def _ask_and_tell(self, ask: Ask) -> bool:
        await self._write()
        return bool(ask.new)

    async def _write(self) -> None:
        async with self._writing:
            asks = list(self._pending)
            if not asks:
                return
            given = json.dumps([ask.row() for ask in asks])
            fresh = {(scope, key) for scope, key in await self.ask(lambda sql: sql["record_effects"], given)}
            for ask in asks:
                ask.new = ask.at in fresh
                fresh.discard(ask.at)
            known = [ask for ask in asks if not ask.new]
            if known:
                await self._was_before(known)
            del self._pending[: len(asks)]
            self.asks += asks

    async def _was_before(self, known: list[Ask]) -> None:
        given = json.dumps([{"scope": ask.scope, "key": ask.key} for ask in known])
        rows = await self.ask(lambda sql: sql["recorded_effects"], given)
        before = {(scope, key): (status, receipt) for scope, key, status, receipt in rows}
        conflicts = []
        for ask in known:
            ask.status, receipt = before.get(ask.at, (None, None))
            self._refuse_two_in_one(ask)
            if ask.kind != ONCE:
                conflicts.append(Noop(ask.leased, "effect", *ask.at))
            elif receipt != ask.leased.receipt:
                raise Repeated(ask)
        if conflicts:
            await self._note(conflicts)

    def _refuse_two_in_one(self, ask: Ask) -> None:
        """Two different effects of one key in one call: the second would be lost in silence."""
        for other in (*self.asks, *self._pending):
            if other.new and other.at == ask.at and other.call != ask.call:
                raise EffectRefused(
                    f"the handler asked for two different effects of the key {ask.key!r}: give each a key of its own"
                )

    async def _note(self, noops: list[Noop]) -> None:
        await self.ask(lambda sql: sql["note_noops"], json.dumps([noop.row() for noop in noops]))
        self.noops += noops

    # -- once per identity ----------------------------------------------------------------------------------------

    async def is_repeated(self, leased: Leased, key: str) -> bool:
        """Whether another event has done this handler's work; if not, this one will have, unless somebody is quicker.

        It is only looked at here, so that a handler that first asks the network holds no lock; the row is written with
        the mark, and if another event was quicker, nothing of this one is kept.
        """
        found = await self._store.recorded_by(leased.source, key)
        if found is not None and found != leased.receipt:
            self._skipped.append(Noop(leased, "effect", leased.source, key))
            return True
        self._once = Ask(leased=leased, scope=leased.source, key=key, kind=ONCE, target=ONCE, args="{}")
        return False

    # -- entities -------------------------------------------------------------------------------------------------

    def advance(self, leased: Leased, advance: Advance) -> Answer[bool]:
        return self._decides("advance", lambda: self._advance(leased, advance))

    async def _advance(self, leased: Leased, advance: Advance) -> bool:
        moved = await self.ask(lambda sql: sql["advance"], json.dumps(advance.as_json()))
        if not moved:
            await self._note([Noop(leased, "stale", advance.scope, advance.key)])
        return bool(moved)

    def is_stale(self, advance: Advance) -> Answer[bool]:
        return self._decides("is_stale", lambda: self._is_stale(advance))

    async def _is_stale(self, advance: Advance) -> bool:
        if self._transaction.used:
            rows = await self.ask(lambda sql: sql["entity"], json.dumps(advance.as_json()))
            known = _place_of(rows[0]) if rows else None
        else:
            row = await self._store.entity(advance.scope, advance.kind, advance.id)
            known = place(row.is_terminal, row.at, row.version, row.event_id) if row else None
        return known is not None and advance.place < known

    # -- the object now -------------------------------------------------------------------------------------------

    def canonical(self, leased: Leased, event: Any) -> Answer[Any]:
        return self._decides("canonical", lambda: self._fetch(leased, event))

    async def _fetch(self, leased: Leased, event: Any) -> Any:
        if leased.receipt not in self._fetched:
            if self._transaction.used:
                raise TransactionClosed(
                    "ask for the canonical object before the first use of tx, effects or entities: no transaction may "
                    "be open while a provider is asked"
                )
            self._fetched[leased.receipt] = await self._canonical.fetch(leased.source, event)
        return self._fetched[leased.receipt]

    # -- in a loop or in a thread ---------------------------------------------------------------------------------

    def _decides(self, verb: str, run: Callable[[], Coroutine[Any, Any, T]]) -> Answer[T]:
        self._check_open()
        answer = Answer(self, verb, run)
        self.unanswered.add(answer)
        return answer

    def wait_for(self, answer: Answer[T]) -> T:
        """Block a handler's thread for the answer. Called in a loop, where it must not block, it returns an awaitable:
        then a plain function has returned the coroutine of an `async def` that it hides."""
        given: T = in_its_way(answer, self.loop)
        return given

    def _check_open(self) -> None:
        if self._ended:
            raise TransactionClosed(ENDED)


def _place_of(row: Sequence[Any]) -> Place:
    is_terminal, at, version, event_id, *_ = row
    return place(is_terminal, moment(at) if isinstance(at, str) else at, version, event_id)
