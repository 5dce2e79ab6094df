"""Run the work of an inbox step by step: lease, handle and settle due events, and run due effects."""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oncehook.concurrency.clock import SYSTEM
from oncehook.effects.relay import Relay
from oncehook.inbox import Inbox
from oncehook.model.effect import EffectFilter, EffectState, StoredEffect
from oncehook.model.lease import Leased
from oncehook.model.receipt import Receipt
from oncehook.model.retry import longest_delays
from oncehook.operations import replay as replaying
from oncehook.operations.prune import Pruned, effect_horizon
from oncehook.operations.prune import prune as prune_store
from oncehook.store.rows import Selection
from oncehook.testing.clock import advance
from oncehook.testing.deliveries import NOT_RUNNING, DeliveryResponse
from oncehook.worker.process import Processor
from oncehook.worker.rescue import rescue

AT_ONCE = 100
LATE = 0.01
"""How many seconds `drain(later=True)` moves past the time at which an event is due."""


class NotAtRest(AssertionError):
    """`drain` did not finish: events kept becoming due, or another process was pruning."""


@dataclass(frozen=True, slots=True)
class Performed:
    """The current state of an effect that `drain` has run."""

    key: str
    target: str  # the name of the function, the topic, or the address
    args: Any  # None if they were erased
    status: EffectState
    attempts: int
    last_error: str | None


class Drained(list[Receipt]):
    """The result of `drain`: a list of the receipts that it handled. `effects` has the effects that it ran.

    drained = await drain(inbox)
    assert [receipt.status for receipt in drained] == ["processed"]
    assert [effect.key for effect in drained.effects] == ["receipt:in_1"]
    """

    def __init__(self, receipts: Iterable[Receipt], effects: Sequence[Performed]) -> None:
        super().__init__(receipts)
        self.effects = list(effects)


async def drain(
    inbox: Inbox, *, later: bool = False, effects: bool = True, most: int = 1000, seconds: float = 60.0
) -> Drained:
    """Handle events one after another, and run their effects, until nothing is due. Returns the handled receipts.

    Expired leases are rescued first. An event that fails is due again after the longest delay of its retry policy, not
    after a random one. With `later=True`, `drain` moves time forward to each retry until none is left.
    With `effects=False`, effects are only recorded. Raises NotAtRest after `most` attempts or `seconds` seconds.

        await deliver(inbox, "stripe", type="invoice.paid")
        (receipt,) = await drain(inbox)
        assert receipt.status == "processed"
    """
    run = DrainRun(
        inbox,
        _processor(inbox),
        Relay(inbox._runtime.store, inbox._runtime.effects, concurrency=1) if effects else None,
    )
    deadline = SYSTEM.monotonic() + seconds
    try:
        with longest_delays():
            while await run.step(most, later=later):
                if run.attempts >= most or SYSTEM.monotonic() > deadline:
                    raise NotAtRest(
                        f"events are still due after {run.attempts} attempts in "
                        f"{SYSTEM.monotonic() - deadline + seconds:.1f} s: does a handler deliver to its own inbox, or "
                        f"fail without end? The last attempt was {run.last}"
                    )
    finally:
        if run.relay is not None:
            await run.relay.stop()
    return await run.result()


async def perform(inbox: Inbox) -> int:
    """Run the effects that are due, for example after `drain(effects=False)`. Returns the number of calls.

    Expired leases are rescued first. An effect that fails becomes due later: call `advance`, then `perform` again.
    """
    _check(inbox)
    relay = Relay(inbox._runtime.store, inbox._runtime.effects)
    try:
        with longest_delays():
            await relay.rescue()
            return len(await relay.drain())
    finally:
        await relay.stop()


async def crash(inbox: Inbox, *, most: int = AT_ONCE) -> list[Receipt]:
    """Act as a worker that leases up to `most` due events and dies. Returns their receipts.

    The attempts are counted and never settled. The leases expire after the setting `lease`: `advance` by that time, and
    the next `drain` rescues the events.

        await crash(inbox)
        await advance(inbox, "31s")
        (receipt,) = await drain(inbox)
    """
    _processor(inbox)
    leased = await lease_due(inbox, most)
    rows = [await inbox._runtime.store.receipts.get(event.receipt) for event in leased]
    return [row for row in rows if row is not None]


async def receipt(inbox: Inbox, which: int | DeliveryResponse) -> Receipt:
    """Return the current receipt, by its number or by the response to its delivery."""
    number = which.receipt if isinstance(which, DeliveryResponse) else which
    row = await inbox._runtime.store.receipts.get(number) if number is not None else None
    if row is None:
        raise LookupError(f"there is no receipt {number}" if number else f"the response has no receipt: {which}")
    return row


async def replay(inbox: Inbox, *which: int | DeliveryResponse) -> int:
    """Replay receipts, as `oncehook replay` does. Returns how many were queued again."""
    numbers = tuple([(await receipt(inbox, item)).receipt for item in which])
    return (await replaying.replay(inbox._runtime.store, Selection(receipts=numbers), actor="a test")).count


async def prune(inbox: Inbox) -> Pruned:
    """Delete receipts, payloads and effects that are past their retention, as a worker does once an hour."""
    retention = effect_horizon(inbox._runtime.settings, inbox._runtime.horizons.values())
    done = await prune_store(inbox._runtime.store, inbox._runtime.horizons.values(), effects=retention)
    if done is None:
        raise NotAtRest("another process is pruning this database")
    return done


# -- steps ----------------------------------------------------------------------------------------------------------


def _check(inbox: Inbox) -> None:
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    if inbox._runtime.worker is not None:
        raise RuntimeError("this inbox runs a worker, which would lease the events: use Inbox(worker=False)")


def _processor(inbox: Inbox) -> Processor:
    _check(inbox)
    return inbox._runtime.start_processor()


class DrainRun:
    """The progress of one `drain`."""

    def __init__(self, inbox: Inbox, processor: Processor, relay: Relay | None) -> None:
        self.inbox, self.runtime = inbox, inbox._runtime
        self.processor, self.relay = processor, relay
        self.attempts = 0
        self.last = ""
        self.receipts: dict[int, None] = {}  # an ordered set
        self.effects: dict[int, None] = {}

    async def step(self, most: int, *, later: bool) -> bool:
        """Handle the due events and effects, or with `later` the next ones. Returns whether there were any."""
        if await self._handle_events() or await self._run_effects(most):
            return True
        due = await self._next_due() if later else None
        if due is None:
            return False
        await advance(self.inbox, max(due, 0.0) + LATE)
        return await self._handle_events() or await self._run_effects(most)

    async def _handle_events(self) -> bool:
        await rescue(self.runtime.store, self.runtime.handlers, self.runtime.sources)
        leased = await lease_due(self.inbox, AT_ONCE)
        if not leased:
            return False
        self.attempts += len(leased)
        self.receipts |= dict.fromkeys(event.receipt for event in leased)
        last = leased[-1]
        self.last = f"receipt {last.receipt}, {last.source} {last.type}, attempt {last.attempt}"
        await _handle(self.processor, leased)
        return True

    async def _run_effects(self, most: int) -> bool:
        if self.relay is None:
            return False
        await self.relay.rescue()
        ids = await self.relay.drain(most)
        self.attempts += len(ids)
        self.effects |= dict.fromkeys(ids)
        if ids:
            self.last = f"effect {ids[-1]}"
        return bool(ids)

    async def _next_due(self) -> float | None:
        store, effects = self.runtime.store, self.runtime.effects
        handlers = self.runtime.handlers
        due = [await store.leases_of(name).next_due(handlers.handled_by(name)) for name in handlers.consumers]
        if self.relay is not None:
            waiting = await store.effects.waiting()
            due += [-row.lag for row in waiting if effects.find(row.kind, row.target) is not None]
        return min((seconds for seconds in due if seconds is not None), default=None)

    async def result(self) -> Drained:
        store = self.runtime.store
        receipts = [await store.receipts.get(number) for number in self.receipts]
        ids = tuple(self.effects)
        rows = await store.effects.find(EffectFilter(ids=ids), limit=len(ids)) if ids else []
        by_id = {row.id: row for row in rows}
        return Drained(
            [row for row in receipts if row is not None], [_make_performed(by_id[id]) for id in ids if id in by_id]
        )


def _make_performed(row: StoredEffect) -> Performed:
    args = None if row.args is None else json.loads(row.args)
    fields = {name: getattr(row, name) for name in ("key", "target", "attempts", "last_error")}
    return Performed(**fields, args=args, status=EffectState(row.status))


async def lease_due(inbox: Inbox, most: int) -> list[Leased]:
    """Lease due events, as a worker does. An event whose last worker died is leased by itself."""
    runtime = inbox._runtime
    seconds = runtime.settings.lease
    for rescued in (False, True):
        for consumer in runtime.handlers.consumers:
            leases, handled = runtime.store.leases_of(consumer), runtime.handlers.handled_by(consumer)
            leased = await leases.take(1 if rescued else most, seconds, "a test", rescued=rescued, handled=handled)
            if leased:
                return leased
    return []


async def _handle(processor: Processor, leased: Sequence[Leased]) -> None:
    for event in leased:
        processor.heartbeat.hold(event.lease_key)
    ready = deque(leased)
    while ready:
        event = ready.popleft()
        handler = processor.handlers.find(event.source, event.type, event.consumer)
        if handler is None or not handler.batch:
            await processor.process(event)
            continue
        find = processor.handlers.find
        same = [other for other in ready if find(other.source, other.type, other.consumer) is handler]
        batch = [event, *same[: handler.batch - 1]]
        numbers = {other.receipt for other in batch}
        ready = deque(other for other in ready if other.receipt not in numbers)
        await processor.process_batch(handler, batch)
