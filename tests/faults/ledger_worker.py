"""A worker process whose handler writes a ledger row for each event, in the event's transaction.

python -m tests.faults.ledger_worker DATABASE LEASE_SECONDS [HANDLER_SECONDS]
"""

import asyncio
import signal
import sys
from typing import Any

from oncehook import Event, Inbox, Retry
from tests.support.waiting import let_time_pass


async def main(database: str, lease: str, pause: str = "0.002") -> None:
    inbox = Inbox(database, lease=float(lease), migrate="never", poll=0.05)
    inbox.source("stripe", secrets=["whsec_test"])
    parameter = "$1" if database.startswith("postgresql") else "?"

    @inbox.on("stripe", "*", retry=Retry(attempts=100, first=0.05, most=0.1))
    async def write(event: Event, tx: Any) -> None:
        await tx.execute(f"INSERT INTO ledger (event_id) VALUES ({parameter})", event.id)
        await let_time_pass(float(pause))
        await tx.execute(f"UPDATE ledger SET twice = event_id WHERE event_id = {parameter}", event.id)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        print("ready", flush=True)
        await stop.wait()


asyncio.run(main(*sys.argv[1:]))
