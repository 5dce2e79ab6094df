"""A worker process with three consumers: `main` and `ledger` write a row for each event, and `search` always fails.

For the event `evt_poison`, `search` kills the process.

python -m tests.faults.consumer_worker DATABASE LEASE_SECONDS [ATTEMPTS [HANDLER_SECONDS]]
"""

import asyncio
import os
import signal
import sys
from typing import Any

from oncehook import Event, Inbox, Retry
from tests.support.waiting import let_time_pass


async def main(database: str, lease: str, attempts: str = "1000", seconds: str = "0.002") -> None:
    """`attempts` are those of `main` and `ledger`. A kill uses up an attempt of each leased event."""
    inbox = Inbox(database, lease=float(lease), migrate="never", poll=0.05)
    inbox.source("stripe", secrets=["whsec_test"])
    pause = float(seconds)
    retry = Retry(attempts=int(attempts), first=0.05, most=0.1)
    values = "$1, $2" if database.startswith("postgresql") else "?, ?"

    async def write(event: Event, tx: Any) -> None:
        await tx.execute(f"INSERT INTO ledger (event_id, consumer) VALUES ({values})", event.id, event.consumer)
        await let_time_pass(pause)

    @inbox.on("stripe", "*", consumer="search", retry=Retry(attempts=3, first=0, most=0))
    async def fail(event: Event, tx: Any) -> None:
        if event.id == "evt_poison":
            await let_time_pass(0.2)  # the others run at the same time, unless this event is isolated
            os.kill(os.getpid(), signal.SIGKILL)
        await write(event, tx)
        raise RuntimeError("the search index is down")

    inbox.on("stripe", "*", retry=retry)(write)
    inbox.on("stripe", "*", consumer="ledger", retry=retry)(write)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        print("ready", flush=True)
        await stop.wait()


asyncio.run(main(*sys.argv[1:]))
