"""Rescues receipts whose lease has expired because their worker crashed or hung.

The setting `lease` is the length of a lease (30 seconds by default). A worker extends the leases of running handlers.
Every worker scans for expired leases every `lease / 3` seconds. So a receipt is rescued between `lease` and about
`lease * 4 / 3` after the last extension. A process leaves receipts to the processes that have their handlers.

If the host of a worker vanishes, the database keeps its sessions open, with the locks of its handlers. The next attempt
would wait for those locks and fail, so the rescue ends these sessions. If a session is still in use, one of the next
scans ends it.
"""

import asyncio
from collections.abc import Callable, Mapping

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.handlers.registry import Handlers
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Settled
from oncehook.model.retry import Crashed, Retry, ScheduleRetry, decide
from oncehook.model.rows import ExpiredReceipt
from oncehook.model.states import State
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.providers.source import HORIZON, Source
from oncehook.store.store import Store
from oncehook.worker.clock_watch import ClockWatch

PAGE = 200
SESSION_SCANS = 7
"""How many scans end the sessions of a crashed worker: about two leases. By then, the TCP timeouts have ended a direct
connection whose client is gone. Behind a pooler, only the timeout of idle transactions ends a session after that."""
UNKNOWN = Retry(attempts=2**31)
"""The policy for a receipt that no process handles. It waits for a process with a handler."""
ABANDONED = "the provider stopped retrying"


Sources = Mapping[str, Source]


Elsewhere = Callable[[str, str, str], bool]
"""Whether another process handles a type of a source for a consumer."""


def not_elsewhere(source: str, type_: str, consumer: str) -> bool:
    """The default for `elsewhere`: no other process handles these events."""
    return False


class CrashedWorkers:
    """The crashed workers whose sessions the next scans end."""

    def __init__(self, store: Store, clock: Clock = SYSTEM) -> None:
        self._store = store
        self._clock = clock
        self._left: dict[str, tuple[int, float]] = {}  # the scans that are left, and when the worker was found

    def add(self, worker: str) -> None:
        self._left[worker] = SESSION_SCANS, self._clock.monotonic()

    async def end_sessions(self) -> None:
        """End their idle sessions. The next call ends those that run a statement, or have just ended one.

        If the worker is alive after all, the transactions that it has begun since then are left alone.
        """
        for worker, (scans, found_at) in sorted(self._left.items()):
            self._left[worker] = scans - 1, found_at  # first: a call that fails again and again must end, too
            if scans == 1:
                del self._left[worker]
            await self._store.leases.end_sessions(worker, self._clock.monotonic() - found_at)


async def rescue(
    store: Store,
    handlers: Handlers,
    sources: Sources,
    elsewhere: Elsewhere = not_elsewhere,
    crashed: CrashedWorkers | None = None,
) -> int:
    """Rescue all receipts whose lease has expired, and return their number.

    A receipt without attempts left becomes a dead letter. The process with the handler knows how many attempts there
    are, so receipts of handlers in other processes are left to those. Their workers are added to `crashed`.
    """
    rescued = after = 0
    while True:
        page = await store.leases.expired(PAGE, after)
        if not page:
            return rescued
        after = page[-1].receipt
        page = [row for row in page if _may_rescue(row, handlers, elsewhere)]
        settled = [_settle_crashed(row, handlers, sources) for row in page]
        landed = await store.leases.settle(settled)
        rescued += len(landed)
        for row, result in zip(page, settled, strict=True):
            if result.receipt in landed:
                signals.record_expired_lease(row, result)
        for worker in sorted({row.worker for row in page if row.receipt in landed and row.worker is not None}):
            await store.leases.end_sessions(worker)
            if crashed is not None:
                crashed.add(worker)


def _may_rescue(row: ExpiredReceipt, handlers: Handlers, elsewhere: Elsewhere) -> bool:
    is_here = handlers.find(row.source, row.type, row.consumer) is not None
    return row.is_inline or is_here or not elsewhere(row.source, row.type, row.consumer)


def _settle_crashed(row: ExpiredReceipt, handlers: Handlers, sources: Sources) -> Settled:
    handler = handlers.find(row.source, row.type, row.consumer)
    error = Crashed("the lease expired: the worker crashed, or the handler hung")
    policy, source = handler.retry if handler else UNKNOWN, sources.get(row.source)
    if row.is_inline:  # the provider got no response and delivers again, whatever `on_failure` says
        policy = Retry(attempts=source.inline_attempts) if source else Retry()
    decision = decide(policy, row.attempt, error)
    after = decision.after if isinstance(decision, ScheduleRetry) else None
    if after is not None and row.is_inline:
        after = source.horizon if source else HORIZON
    return Settled(
        row.receipt,
        row.lease,
        State.FAILED if after is None else State.RETRYING,
        "crashed",
        after=after,
        error=str(error),
        handler=handler.name if handler else None,
        crashed=True,
    )


async def abandon(store: Store) -> None:
    """Turn inline receipts into dead letters when their provider has stopped retrying."""
    for row in await store.leases.abandon_inline(ABANDONED):
        signals.record_abandoned_event(row)


async def keep_rescuing(
    store: Store, handlers: Handlers, sources: Sources, every: float, elsewhere: Elsewhere = not_elsewhere
) -> None:
    """Rescue receipts every `every` seconds, until cancelled. Correct due times after the clock was set back."""
    watch, crashed = ClockWatch(store), CrashedWorkers(store)
    while True:
        await asyncio.sleep(every)
        try:
            await rescue(store, handlers, sources, elsewhere, crashed)
            await abandon(store)
            await watch.check()
            await crashed.end_sessions()
            reach(Checkpoint.EXPIRED_LEASES_CHECKED)
        except Unavailable as error:
            signals.emit("worker_database_unavailable", detail=error.detail)
        except Exception as error:
            signals.log_background_failure("rescue", error)
