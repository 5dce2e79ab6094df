"""Expired leases come back by themselves: a worker that crashed or hung keeps no receipt for longer than its lease."""

import asyncio
from collections.abc import Mapping

from oncehook import signals
from oncehook.errors import Unavailable
from oncehook.handle import Handlers
from oncehook.receipt import Settled, State
from oncehook.retry import Again, Crashed, Retry, decide
from oncehook.source import HORIZON, Source
from oncehook.store import Store

PAGE = 200
ABANDONED = "the provider stopped retrying"


Sources = Mapping[str, Source]


async def rescue(store: Store, handlers: Handlers, sources: Sources) -> int:
    """Take back every receipt whose lease ran out; how many. One that used up its attempts becomes a dead letter."""
    rescued = after = 0
    while True:
        page = await store.expired(PAGE, after)
        if not page:
            return rescued
        after = page[-1]["receipt"]
        settled = [_taken_back(row, handlers, sources) for row in page]
        landed = await store.settle(settled)
        rescued += len(landed)
        for row, done in zip(page, settled, strict=True):
            if done.receipt in landed:
                signals.rescued(row, done)


def _taken_back(row: dict[str, object], handlers: Handlers, sources: Sources) -> Settled:
    handler = handlers.find(str(row["source"]), str(row["type"]))
    error = Crashed("the lease ran out: the worker crashed, or the handler hung")
    policy, source = handler.retry if handler else Retry(), sources.get(str(row["source"]))
    if row["is_inline"]:  # its provider got no answer and delivers it again, whatever `on_failure` says
        policy = Retry(attempts=source.inline_attempts) if source else Retry()
    decision = decide(policy, int(str(row["attempt"])), error)
    after = decision.after if isinstance(decision, Again) else None
    if after is not None and row["is_inline"]:
        after = source.horizon if source else HORIZON
    return Settled(
        int(str(row["receipt"])),
        int(str(row["lease"])),
        State.FAILED if after is None else State.RETRYING,
        "crashed",
        after=after,
        error=str(error),
        handler=handler.name if handler else None,
        crashed=True,
    )


async def keep_rescuing(store: Store, handlers: Handlers, sources: Sources, every: float) -> None:
    """Look again and again, until cancelled."""
    while True:
        await asyncio.sleep(every)
        try:
            await rescue(store, handlers, sources)
            for row in await store.abandon_inline(ABANDONED):
                signals.abandoned(row)
        except Unavailable as error:
            signals.emit("worker_waits", detail=error.detail)
        except Exception as error:
            signals.background_failed("rescue", error)
