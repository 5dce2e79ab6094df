"""A worker process whose handler records its begin and its end outside of its transaction.

python -m tests.faults.serial_worker DATABASE LEASE_SECONDS
"""

import asyncio
import random
import signal
import sys

import asyncpg

from oncehook import Event, Inbox, Retry
from tests.support.waiting import pause_at_random

CHANCE = random.Random()
NOTE = "INSERT INTO spans (key, number, what) VALUES ($1, $2, $3)"


async def main(database: str, lease: str) -> None:
    inbox = Inbox(database, lease=float(lease), migrate="never", poll=0.05)
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
    pool = await asyncpg.create_pool(database, max_size=16)

    @inbox.on("stripe", "*", retry=Retry(attempts=100, first=0.02, most=0.05))
    async def note(event: Event) -> None:
        number = int(event.id.rpartition("-")[2])
        await pool.execute(NOTE, event.object_id, number, "begin")
        await pause_at_random(CHANCE, 0.02)
        await pool.execute(NOTE, event.object_id, number, "end")

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        print("ready", flush=True)
        await stop.wait()
    await pool.close()


asyncio.run(main(*sys.argv[1:]))
