"""Expired leases come back by themselves: a worker that crashed or hung keeps no receipt for longer than its lease.

The setting `lease` decides how long that is (30 seconds by default). A worker extends the leases of running handlers.
Every worker scans for expired leases every `lease / 3` seconds, so a receipt is taken back between `lease` and about
`lease * 4 / 3` after the last extension. Receipts whose handlers are in other processes are left to those.

One whose host vanished keeps its database sessions too, with the locks of its handlers: the database does not hear of
it. What was taken back would wait for those locks and use up its attempts, so they are ended.
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

PAGE = 200
UNKNOWN = Retry(attempts=2**31)
"""The policy of a receipt that no process handles: it waits for one that does."""
ABANDONED = "the provider stopped retrying"


Sources = Mapping[str, Source]


Elsewhere = Callable[[str, str], bool]
"""Whether another process handles a source's type."""


def nowhere(source: str, type_: str) -> bool:
    """The default for `elsewhere`: no other process handles these events."""
    return False


async def rescue(store: Store, handlers: Handlers, sources: Sources, elsewhere: Elsewhere = nowhere) -> int:
    """Take back every receipt whose lease ran out; how many. One that used up its attempts becomes a dead letter.

    How many attempts there are is known where the handler is: receipts of handlers elsewhere are left to that process.
    """
    rescued = after = 0
    while True:
        page = await store.leases.expired(PAGE, after)
        if not page:
            return rescued
        after = page[-1].receipt
        page = [row for row in page if _is_ours(row, handlers, elsewhere)]
        settled = [_taken_back(row, handlers, sources) for row in page]
        landed = await store.leases.settle(settled)
        rescued += len(landed)
        for row, done in zip(page, settled, strict=True):
            if done.receipt in landed:
                signals.record_expired_lease(row, done)
        for worker in sorted({str(row.worker) for row in page if row.receipt in landed}):
            await store.leases.end_sessions(worker)


def _is_ours(row: ExpiredReceipt, handlers: Handlers, elsewhere: Elsewhere) -> bool:
    is_here = handlers.find(row.source, row.type) is not None
    return row.is_inline or is_here or not elsewhere(row.source, row.type)


def _taken_back(row: ExpiredReceipt, handlers: Handlers, sources: Sources) -> Settled:
    handler = handlers.find(row.source, row.type)
    error = Crashed("the lease ran out: the worker crashed, or the handler hung")
    policy, source = handler.retry if handler else UNKNOWN, sources.get(row.source)
    if row.is_inline:  # its provider got no answer and delivers it again, whatever `on_failure` says
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
    """Make dead letters of inline receipts whose provider has stopped retrying."""
    for row in await store.leases.abandon_inline(ABANDONED):
        signals.record_abandoned_event(row)


async def keep_rescuing(
    store: Store, handlers: Handlers, sources: Sources, every: float, elsewhere: Elsewhere = nowhere
) -> None:
    """Look again and again, until cancelled."""
    while True:
        await asyncio.sleep(every)
        try:
            await rescue(store, handlers, sources, elsewhere)
            await abandon(store)
            reach(Checkpoint.EXPIRED_LEASES_CHECKED)
        except Unavailable as error:
            signals.emit("worker_database_unavailable", detail=error.detail)
        except Exception as error:
            signals.log_background_failure("rescue", error)
