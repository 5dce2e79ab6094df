"""The work of an inbox, step by step: what is due is leased, handled and settled here and now."""

from collections import deque
from collections.abc import Sequence

from oncehook import replay as replaying
from oncehook.clock import SYSTEM
from oncehook.inbox import Inbox
from oncehook.process import Processor
from oncehook.prune import Pruned
from oncehook.prune import prune as prune_store
from oncehook.receipt import Leased, Receipt
from oncehook.relay import Relay
from oncehook.rescue import rescue
from oncehook.store import Selection
from oncehook.testing.clock import advance
from oncehook.testing.door import NOT_RUNNING, Answer

AT_ONCE = 100
LATE = 0.01
"""Seconds past the moment at which something is due."""


class NotAtRest(AssertionError):
    """The inbox did not come to rest."""


async def drain(inbox: Inbox, *, later: bool = False, most: int = 1000, seconds: float = 60.0) -> list[Receipt]:
    """Work until nothing is due, one event after another, and return the receipts that were worked on, as they are now.

    A retry that is due later stays; with `later`, time is moved to it, again and again, until every receipt has come to
    an end. Leases that ran out are taken back first. Raises NotAtRest after `most` attempts or so many seconds.
    """
    processor, worked, attempts = _processor(inbox), dict[int, None](), 0
    deadline = SYSTEM.monotonic() + seconds
    while leased := await _due(inbox, later=later):
        attempts += len(leased)
        worked |= dict.fromkeys(one.receipt for one in leased)
        await _work(processor, leased)
        if attempts >= most or SYSTEM.monotonic() > deadline:
            raise NotAtRest(
                f"after {attempts} attempts in {SYSTEM.monotonic() - deadline + seconds:.1f} s something is due again: "
                f"does a handler deliver to its own inbox, or fail without end? The last was receipt "
                f"{leased[-1].receipt}, {leased[-1].source} {leased[-1].type}, attempt {leased[-1].attempt}"
            )
    return [found for number in worked if (found := await inbox.store.get(number)) is not None]


async def perform(inbox: Inbox) -> int:
    """Perform the effects that are due, as the relay of `serve` does; how many calls were made.

    What failed is due again later: `advance`, then perform again. Leases that ran out are taken back first.
    """
    _check(inbox)
    relay = Relay(inbox.store, inbox.effects)
    try:
        await relay.rescue()
        return await relay.drain()
    finally:
        await relay.stop()


async def crash(inbox: Inbox, *, most: int = AT_ONCE) -> list[Receipt]:
    """Be a worker that takes what is due and dies: leased, attempts counted, never settled. Returns the receipts.

    Their leases run out after the `lease` of the settings: `advance` by that, and the next `drain` takes them back.
    """
    _processor(inbox)
    leased = await lease_due(inbox, most)
    return [found for one in leased if (found := await inbox.store.get(one.receipt)) is not None]


async def receipt(inbox: Inbox, which: int | Answer) -> Receipt:
    """A receipt as it is now, by its number or by the door's answer."""
    number = which.receipt if isinstance(which, Answer) else which
    found = await inbox.store.get(number) if number is not None else None
    if found is None:
        raise LookupError(f"there is no receipt {number}" if number else f"the door gave no receipt: {which}")
    return found


async def replay(inbox: Inbox, *which: int | Answer) -> int:
    """Replay these receipts, as `oncehook replay` does; how many went back to `received`."""
    numbers = tuple([(await receipt(inbox, one)).receipt for one in which])
    return (await replaying.replay(inbox.store, Selection(receipts=numbers), actor="a test")).count


async def prune(inbox: Inbox) -> Pruned:
    """Prune what is past its horizon, as the janitor of `serve` does once an hour."""
    done = await prune_store(inbox.store, inbox.horizons.values())
    if done is None:
        raise NotAtRest("another process prunes this database right now")
    return done


# -- steps ----------------------------------------------------------------------------------------------------------


def _check(inbox: Inbox) -> None:
    if not inbox.is_running:
        raise RuntimeError(NOT_RUNNING)
    if inbox.worker is not None:
        raise RuntimeError("this inbox has a worker of its own, which would take the work away: Inbox(worker=False)")


def _processor(inbox: Inbox) -> Processor:
    _check(inbox)
    return inbox.start_processor()


async def _due(inbox: Inbox, *, later: bool) -> list[Leased]:
    """What is due, leased; with `later`, what is due next."""
    await rescue(inbox.store, inbox.handlers)
    leased = await lease_due(inbox, AT_ONCE)
    if leased or not later:
        return leased
    due = await inbox.store.next_due()
    if due is None:
        return []
    await advance(inbox, max(due, 0.0) + LATE)
    return await lease_due(inbox, AT_ONCE)


async def lease_due(inbox: Inbox, most: int) -> list[Leased]:
    """As a worker does it: one whose last worker died is taken alone."""
    seconds = inbox.settings.lease
    return await inbox.store.lease(most, seconds, "a test") or await inbox.store.lease(
        1, seconds, "a test", rescued=True
    )


async def _work(processor: Processor, leased: Sequence[Leased]) -> None:
    for one in leased:
        processor.heartbeat.keep(one.held)
    ready = deque(leased)
    while ready:
        one = ready.popleft()
        handler = processor.handlers.find(one.source, one.type)
        if handler is None or not handler.batch:
            await processor.work(one)
            continue
        same = [other for other in ready if processor.handlers.find(other.source, other.type) is handler]
        batch = [one, *same[: handler.batch - 1]]
        taken = {other.receipt for other in batch}
        ready = deque(other for other in ready if other.receipt not in taken)
        await processor.work_batch(handler, batch)
