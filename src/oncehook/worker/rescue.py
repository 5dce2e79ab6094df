"""Rescues receipts whose lease has expired because their worker crashed or hung.

The setting `lease` is the length of a lease (30 seconds by default). A worker extends the leases of running handlers.
Every worker scans for expired leases every `lease / 3` seconds. So a receipt is rescued between `lease` and about
`lease * 4 / 3` after the last extension. A process leaves receipts to the processes that have their handlers.

If the host of a worker vanishes, the database keeps its sessions open, with the locks of its handlers. The next attempt
would wait for those locks and fail, so the rescue ends these sessions. One of the next scans ends a session that is not
idle yet.
"""

import asyncio
from collections.abc import Callable, Mapping

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
"""For how many scans the sessions of a crashed worker are ended: more than two leases. After that time, PostgreSQL has
ended a session whose client does not confirm what it receives."""
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
    """The workers whose sessions are to be ended, and for how many scans."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scans: dict[str, int] = {}

    def add(self, worker: str) -> None:
        self._scans[worker] = SESSION_SCANS

    async def end_sessions(self) -> None:
        """End their idle sessions. A running statement, or one that has just ended, is left to the next call."""
        for worker, scans in sorted(self._scans.items()):
            await self._store.leases.end_sessions(worker)
            self._scans[worker] = scans - 1
        self._scans = {worker: scans for worker, scans in self._scans.items() if scans > 0}


async def rescue(
    store: Store,
    handlers: Handlers,
    sources: Sources,
    elsewhere: Elsewhere = not_elsewhere,
    crashed: CrashedWorkers | None = None,
) -> int:
    """Rescue all receipts whose lease has expired, and return their number.

    A receipt without attempts left becomes a dead letter. The process with the handler knows how many attempts there
    are, so receipts of handlers in other processes are left to those. `crashed` are the workers of earlier scans.
    """
    crashed = CrashedWorkers(store) if crashed is None else crashed
    rescued = after = 0
    while True:
        page = await store.leases.expired(PAGE, after)
        if not page:
            await crashed.end_sessions()
            return rescued
        after = page[-1].receipt
        page = [row for row in page if _may_rescue(row, handlers, elsewhere)]
        settled = [_settle_crashed(row, handlers, sources) for row in page]
        landed = await store.leases.settle(settled)
        rescued += len(landed)
        for row, result in zip(page, settled, strict=True):
            if result.receipt in landed:
                signals.record_expired_lease(row, result)
                crashed.add(str(row.worker))


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
            reach(Checkpoint.EXPIRED_LEASES_CHECKED)
        except Unavailable as error:
            signals.emit("worker_database_unavailable", detail=error.detail)
        except Exception as error:
            signals.log_background_failure("rescue", error)
