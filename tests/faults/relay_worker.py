"""A process with a relay that kills itself at a named point. Its target records each call.

python -m tests.faults.relay_worker DATABASE CALLS_FILE POINT
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from oncehook import Effect, Event, Inbox, Retry
from oncehook.effects import relay
from oncehook.worker.rescue import keep_rescuing

HEIR = "never"
"""The point of a process that is not killed. Its leases are long, so that a busy machine repeats none of its calls."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(method: Any, *, before: bool) -> Any:
    """A method of the store that kills the process before it runs, or after it returned something."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        if before:
            die()
        answer = await method(*args, **kwargs)
        if answer:
            die()
        return answer

    return call


def make_inbox(database: str, calls: Path, point: str) -> Inbox:
    inbox = Inbox(database, lease=3.0 if point == HEIR else 0.5, migrate="never", poll=0.05)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect(timeout=20.0, retry=Retry(attempts=20, first=0.01, most=0.05))
    def send(effect: Effect, to: str) -> None:
        if point == "before the call":
            die()
        with calls.open("a") as file:
            file.write(f"{effect.idempotency_key} {to}\n")
        if point == "after the call":
            die()

    @inbox.on("stripe", "*", retry=Retry(attempts=20, first=0.01, most=0.05))
    async def request(event: Event) -> None:
        await event.effect(f"mail:{event.object_id}", send, to="jane")

    store: Any = inbox._runtime.store
    if point == "after the lease":
        store.effects.lease = dies(store.effects.lease, before=False)
    elif point == "before settling":
        store.effects.settle = dies(store.effects.settle, before=True)
    elif point == "after settling":
        store.effects.settle = dies(store.effects.settle, before=False)
    elif point == "before the commit":
        inbox._runtime._after_commit = lambda outbox: None  # type: ignore[method-assign]
        native = store.transaction

        def transaction() -> Any:
            made = native()
            made.settle = dies(made.settle, before=True)
            return made

        store.transaction = transaction
    elif point == "after the commit":
        inbox._runtime._after_commit = lambda outbox: die()  # type: ignore[method-assign]
    return inbox


async def main(database: str, calls: str, point: str) -> None:
    inbox = make_inbox(database, Path(calls), point)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    relay.RESCUE_INTERVAL = 0.1 if point == HEIR else 3600.0
    if point != HEIR:
        relay.MARGIN = -19.5  # its leases expire after half a second
    async with inbox.lifespan():
        if point == HEIR:  # it finds expired leases at once
            rescuing = asyncio.create_task(
                keep_rescuing(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources, 0.1)
            )
        print("ready", flush=True)
        await stop.wait()
        if point == HEIR:
            rescuing.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
