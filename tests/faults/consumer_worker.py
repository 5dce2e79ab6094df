"""A worker process with three consumers: `main` and `ledger` write a row for each event, and `search` always fails.

python -m tests.faults.consumer_worker DATABASE LEASE_SECONDS
"""

import asyncio
import signal
import sys
from typing import Any

from oncehook import Event, Inbox, Retry
from tests.support.waiting import let_time_pass

MANY = Retry(attempts=1000, first=0.05, most=0.1)
"""A kill uses up an attempt of each leased event, and no number of kills may make a dead letter."""


async def main(database: str, lease: str) -> None:
    inbox = Inbox(database, lease=float(lease), migrate="never", poll=0.05)
    inbox.source("stripe", secrets=["whsec_test"])
    values = "$1, $2" if database.startswith("postgresql") else "?, ?"

    async def write(event: Event, tx: Any) -> None:
        await tx.execute(f"INSERT INTO ledger (event_id, consumer) VALUES ({values})", event.id, event.consumer)
        await let_time_pass(0.002)

    @inbox.on("stripe", "*", consumer="search", retry=Retry(attempts=2, first=0.01, most=0.02))
    async def fail(event: Event, tx: Any) -> None:
        await write(event, tx)
        raise RuntimeError("the search index is down")

    inbox.on("stripe", "*", retry=MANY)(write)
    inbox.on("stripe", "*", consumer="ledger", retry=MANY)(write)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        print("ready", flush=True)
        await stop.wait()


asyncio.run(main(*sys.argv[1:]))
