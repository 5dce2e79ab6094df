"""Expired leases come back by themselves: a worker that crashed or hung holds nothing for longer than its lease."""

import asyncio

from oncehook import signals
from oncehook.errors import Unavailable
from oncehook.handle import Handlers
from oncehook.receipt import Settled, State
from oncehook.retry import Again, Crashed, Retry, decide
from oncehook.store import Store

PAGE = 200


async def rescue(store: Store, handlers: Handlers) -> int:
    """Take back every receipt whose lease ran out; how many. One that used up its attempts becomes a dead letter."""
    rescued = after = 0
    while True:
        page = await store.expired(PAGE, after)
        if not page:
            return rescued
        after = page[-1]["receipt"]
        settled = [_taken_back(row, handlers) for row in page]
        landed = await store.settle(settled)
        rescued += len(landed)
        for row, done in zip(page, settled, strict=True):
            if done.receipt in landed:
                signals.rescued(row, done)


def _taken_back(row: dict[str, object], handlers: Handlers) -> Settled:
    handler = handlers.find(str(row["source"]), str(row["type"]))
    error = Crashed("the lease ran out: the worker crashed, or the handler hung")
    decision = decide(handler.retry if handler else Retry(), int(str(row["attempt"])), error)
    status = State.RETRYING if isinstance(decision, Again) else State.FAILED
    return Settled(
        int(str(row["receipt"])),
        int(str(row["lease"])),
        status,
        "crashed",
        after=decision.after if isinstance(decision, Again) else None,
        error=str(error),
        handler=handler.name if handler else None,
        crashed=True,
    )


async def keep_rescuing(store: Store, handlers: Handlers, every: float) -> None:
    """Look again and again, until cancelled."""
    while True:
        await asyncio.sleep(every)
        try:
            await rescue(store, handlers)
            for receipt in await store.abandon_inline():
                signals.emit("abandoned", receipt=receipt)
        except Unavailable as error:
            signals.emit("worker_waits", detail=error.detail)
        except Exception as error:
            signals.background_failed("rescue", error)
