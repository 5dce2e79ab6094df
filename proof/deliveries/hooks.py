"""The app of the run: its handler writes a ledger row for each event, and misbehaves where the plan says so."""

import asyncio
import os
import resource
import time
from pathlib import Path
from typing import Any

from oncehook import Event, Inbox, Retry

HANDLER_SECONDS = 4.0
"""The time limit of a handler. One that hangs is cancelled then."""

BLOCKED_SECONDS = 4.5
"""How long a handler blocks its event loop: longer than a lease."""

FAIL = "DO $$ BEGIN RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001'; END $$"

IS_SQLITE = bool(os.environ["DELIVERIES_SQLITE"])
LEDGER = "INSERT INTO ledger (event_id) VALUES ({})"
HISTORY = "INSERT INTO history (object_id, version) VALUES ({}, {})"
BOOK = "UPDATE accounts SET bookings = bookings + 1 WHERE id = {}"

inbox = Inbox(config=os.environ["DELIVERIES_CONFIG"])


@inbox.on("stripe", "*", retry=Retry(attempts=1000, first=0.05, most=0.5), timeout=HANDLER_SECONDS)
async def write(event: Event, tx: Any) -> None:
    await run(tx, LEDGER, event.id)
    version = event["data.object.version"]
    if await event.advance("subscription", event.object_id, version=version, at=None):
        await run(tx, HISTORY, event.object_id, version)
    misdeed = event.get("misdeed")
    if misdeed == "deadlock":
        await book(event, tx)
    elif misdeed is not None and event.attempt == 1:
        await misbehave(misdeed, tx)


async def run(tx: Any, statement: str, *values: object) -> None:
    marks = ["?" if IS_SQLITE else f"${number}" for number in range(1, len(values) + 1)]
    await tx.execute(statement.format(*marks), *values)


async def book(event: Event, tx: Any) -> None:
    """Lock two rows, in the opposite order of the handler of the next object."""
    first = int(event["data.object.id"].rpartition("_")[2]) % 2
    for account in (first, 1 - first):
        await run(tx, BOOK, account)
        await asyncio.sleep(0.3 if event.attempt == 1 else 0.0)


async def misbehave(misdeed: str, tx: Any) -> None:
    with Path(os.environ["DELIVERIES_MISDEEDS"]).open("a") as file:
        file.write(f"{misdeed}\n")
    match misdeed:
        case "abort":
            os.abort()
        case "block":
            time.sleep(BLOCKED_SECONDS)
        case "hang":
            await asyncio.Event().wait()
        case "serialization":
            await tx.execute(FAIL)
        case "fork":
            child = os.fork()
            if child == 0:
                os.closerange(3, 1024)  # closes the connections, which the child shares with this process
                os._exit(0)
            os.waitpid(child, 0)
        case "memory":
            allocate_too_much()


def allocate_too_much() -> None:
    """Allocate a gigabyte while the process may use only 64 MB more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, before[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
