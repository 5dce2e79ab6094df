"""The work of an inbox, step by step: what is due is leased, handled and settled here and now."""

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
"""Seconds past the moment at which something is due."""


class NotAtRest(AssertionError):
    """The inbox did not come to rest."""


@dataclass(frozen=True, slots=True)
class Performed:
    """An effect that was called while the inbox was drained, as it is now."""

    key: str
    target: str  # the function's name, the topic, or the address
    args: Any  # None: they were erased
    status: EffectState
    attempts: int
    last_error: str | None


class Drained(list[Receipt]):
    """The receipts that were worked on, as they are now, and the effects that were performed after their commits."""

    def __init__(self, receipts: Iterable[Receipt], effects: Sequence[Performed]) -> None:
        super().__init__(receipts)
        self.effects = list(effects)


async def drain(
    inbox: Inbox, *, later: bool = False, effects: bool = True, most: int = 1000, seconds: float = 60.0
) -> Drained:
    """Work until nothing is due, one event after another, with the effects they ask for; all that, as it is now.

    A retry that is due later stays; with `later`, time is moved to it, again and again, until all has come to an end.
    Leases that ran out are taken back first. With `effects=False` effects stay where they are, recorded. Raises
    NotAtRest after `most` attempts or so many seconds.
    """
    draining = Draining(
        inbox,
        _processor(inbox),
        Relay(inbox._runtime.store, inbox._runtime.effects, concurrency=1) if effects else None,
    )
    deadline = SYSTEM.monotonic() + seconds
    try:
        while await draining.step(most, later=later):
            if draining.attempts >= most or SYSTEM.monotonic() > deadline:
                raise NotAtRest(
                    f"after {draining.attempts} attempts in {SYSTEM.monotonic() - deadline + seconds:.1f} s something "
                    f"is due again: does a handler deliver to its own inbox, or fail without end? "
                    f"The last was {draining.last}"
                )
    finally:
        if draining.relay is not None:
            await draining.relay.stop()
    return await draining.done()


async def perform(inbox: Inbox) -> int:
    """Perform the effects that are due and nothing else, after `drain(effects=False)`; how many calls were made.

    What failed is due again later: `advance`, then perform again. Leases that ran out are taken back first.
    """
    _check(inbox)
    relay = Relay(inbox._runtime.store, inbox._runtime.effects)
    try:
        await relay.rescue()
        return len(await relay.drain())
    finally:
        await relay.stop()


async def crash(inbox: Inbox, *, most: int = AT_ONCE) -> list[Receipt]:
    """Be a worker that takes what is due and dies: leased, attempts counted, never settled. Returns the receipts.

    Their leases run out after the `lease` of the settings: `advance` by that, and the next `drain` takes them back.
    """
    _processor(inbox)
    leased = await lease_due(inbox, most)
    return [found for one in leased if (found := await inbox._runtime.store.receipts.get(one.receipt)) is not None]


async def receipt(inbox: Inbox, which: int | DeliveryResponse) -> Receipt:
    """A receipt as it is now, by its number or by the door's answer."""
    number = which.receipt if isinstance(which, DeliveryResponse) else which
    found = await inbox._runtime.store.receipts.get(number) if number is not None else None
    if found is None:
        raise LookupError(f"there is no receipt {number}" if number else f"the door gave no receipt: {which}")
    return found


async def replay(inbox: Inbox, *which: int | DeliveryResponse) -> int:
    """Replay these receipts, as `oncehook replay` does; how many went back to `received`."""
    numbers = tuple([(await receipt(inbox, one)).receipt for one in which])
    return (await replaying.replay(inbox._runtime.store, Selection(receipts=numbers), actor="a test")).count


async def prune(inbox: Inbox) -> Pruned:
    """Prune what is past its horizon, as the janitor of `serve` does once an hour."""
    kept = effect_horizon(inbox._runtime.settings, inbox._runtime.horizons.values())
    done = await prune_store(inbox._runtime.store, inbox._runtime.horizons.values(), effects=kept)
    if done is None:
        raise NotAtRest("another process prunes this database right now")
    return done


# -- steps ----------------------------------------------------------------------------------------------------------


def _check(inbox: Inbox) -> None:
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    if inbox._runtime.worker is not None:
        raise RuntimeError("this inbox has a worker of its own, which would take the work away: Inbox(worker=False)")


def _processor(inbox: Inbox) -> Processor:
    _check(inbox)
    return inbox._runtime.start_processor()


class Draining:
    """One drain of an inbox: what was done so far."""

    def __init__(self, inbox: Inbox, processor: Processor, relay: Relay | None) -> None:
        self.inbox, self.runtime = inbox, inbox._runtime
        self.processor, self.relay = processor, relay
        self.attempts = 0
        self.last = ""
        self.worked: dict[int, None] = {}
        self.performed: dict[int, None] = {}

    async def step(self, most: int, *, later: bool) -> bool:
        """Whether something was due, and was done; with `later`, what is due next."""
        if await self._work() or await self._perform(most):
            return True
        due = await self._next_due() if later else None
        if due is None:
            return False
        await advance(self.inbox, max(due, 0.0) + LATE)
        return await self._work() or await self._perform(most)

    async def _work(self) -> bool:
        await rescue(self.runtime.store, self.runtime.handlers, self.runtime.sources)
        leased = await lease_due(self.inbox, AT_ONCE)
        if not leased:
            return False
        self.attempts += len(leased)
        self.worked |= dict.fromkeys(one.receipt for one in leased)
        last = leased[-1]
        self.last = f"receipt {last.receipt}, {last.source} {last.type}, attempt {last.attempt}"
        await _work(self.processor, leased)
        return True

    async def _perform(self, most: int) -> bool:
        if self.relay is None:
            return False
        await self.relay.rescue()
        performed = await self.relay.drain(most)
        self.attempts += len(performed)
        self.performed |= dict.fromkeys(performed)
        if performed:
            self.last = f"effect {performed[-1]}"
        return bool(performed)

    async def _next_due(self) -> float | None:
        store, effects = self.runtime.store, self.runtime.effects
        due = [await store.leases.next_due(self.runtime.handlers.handled)]
        if self.relay is not None:
            waiting = await store.effects.waiting()
            due += [-row.lag for row in waiting if effects.find(row.kind, row.target) is not None]
        return min((seconds for seconds in due if seconds is not None), default=None)

    async def done(self) -> Drained:
        store = self.runtime.store
        receipts = [found for number in self.worked if (found := await store.receipts.get(number)) is not None]
        ids = tuple(self.performed)
        rows = await store.effects.find(EffectFilter(ids=ids), limit=len(ids)) if ids else []
        by_id = {row.id: row for row in rows}
        return Drained(receipts, [_performed(by_id[id]) for id in ids if id in by_id])


def _performed(row: StoredEffect) -> Performed:
    args = None if row.args is None else json.loads(row.args)
    told = {name: getattr(row, name) for name in ("key", "target", "attempts", "last_error")}
    return Performed(**told, args=args, status=EffectState(row.status))


async def lease_due(inbox: Inbox, most: int) -> list[Leased]:
    """As a worker does it: one whose last worker died is taken alone."""
    runtime = inbox._runtime
    seconds, handled = runtime.settings.lease, runtime.handlers.handled
    return await runtime.store.leases.take(most, seconds, "a test", handled=handled) or await runtime.store.leases.take(
        1, seconds, "a test", rescued=True, handled=handled
    )


async def _work(processor: Processor, leased: Sequence[Leased]) -> None:
    for one in leased:
        processor.heartbeat.hold(one.held)
    ready = deque(leased)
    while ready:
        one = ready.popleft()
        handler = processor.handlers.find(one.source, one.type)
        if handler is None or not handler.batch:
            await processor.process(one)
            continue
        same = [other for other in ready if processor.handlers.find(other.source, other.type) is handler]
        batch = [one, *same[: handler.batch - 1]]
        taken = {other.receipt for other in batch}
        ready = deque(other for other in ready if other.receipt not in taken)
        await processor.process_batch(handler, batch)
