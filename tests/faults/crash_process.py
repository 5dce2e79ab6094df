"""A process that does one part of Oncehook's work, with a crash point in it.

ONCEHOOK_CRASH_POINT=R7 ONCEHOOK_CRASH_FAULT=kill python -m tests.faults.crash_process DATABASE FOLDER PART
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from oncehook import Effect, Event, Inbox, Retry
from oncehook.config.settings import Horizon, Settings
from oncehook.effects import relay
from oncehook.operations.prune import prune
from oncehook.operations.replay import replay
from oncehook.store import make_store
from oncehook.store.rows import Selection
from oncehook.testing import crash_hooks, crash_points
from oncehook.worker.rescue import keep_rescuing
from tests.support.serve import served
from tests.support.waiting import let_time_pass

LEASE = 1.0
DAY = 86400.0


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cancel() -> None:
    """Cancel the task that reached the point, and stop the process as an orchestrator does."""
    os.kill(os.getpid(), signal.SIGTERM)
    with suppress(RuntimeError):  # in a thread, there is no task
        task = asyncio.current_task()
        if task is not None:
            task.cancel()


def disconnect() -> None:
    """End every session of the database but this one."""
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


FAULTS: dict[str, Callable[[], None]] = {"kill": kill, "cancel": cancel, "disconnect": disconnect}


def install(database: str) -> tuple[crash_hooks.Trigger | None, Callable[[str], None]]:
    """Install the point that the environment names, if it names one."""
    name = os.environ.get("ONCEHOOK_CRASH_POINT")
    if name is None:
        return None, lambda step: None
    dialect = "sqlite" if database.startswith("sqlite") else "postgres"

    def fault() -> None:
        Path(sys.argv[2], f"reached-{name}").touch()
        FAULTS[os.environ["ONCEHOOK_CRASH_FAULT"]]()

    return crash_hooks.install(crash_points.find(name), dialect, fault)


def make_inbox(database: str, folder: Path, reach: Callable[[str], None], **settings: Any) -> Inbox:
    inbox = Inbox(database, lease=LEASE, migrate="never", poll=0.05, claim_timeout="10s", **settings)
    inbox.source("stripe", secrets=["whsec_test"])
    parameter = "$1" if database.startswith("postgresql") else "?"

    @inbox.effect(timeout=20.0, retry=Retry(attempts=30, first=0.01, most=0.05))
    def send(effect: Effect, to: str) -> None:
        with (folder / "effects").open("a") as file:
            file.write(f"{effect.idempotency_key} {to}\n")

    @inbox.on("stripe", "*", retry=Retry(attempts=30, first=0.01, most=0.05))
    async def handle(event: Event, tx: Any) -> None:
        reach("started")
        await tx.execute(f"INSERT INTO ledger (event_id) VALUES ({parameter})", event.id)
        reach("wrote")
        reach("calls")
        with (folder / "calls").open("a") as file:
            file.write(f"{event.id}\n")
        reach("called")
        await event.effect(f"mail:{event.id}", send, to=event.id)
        if event.id == "evt_slow":
            await let_time_pass(LEASE * 0.7)
        if event.id == "evt_retry" and event.attempt == 1:
            raise ConnectionError("not yet")

    @inbox.on("stripe", "dead.letter", retry=Retry(attempts=1))
    async def fail(event: Event, tx: Any) -> None:
        await tx.execute(f"INSERT INTO ledger (event_id) VALUES ({parameter})", event.id)
        raise LookupError("never")

    return inbox


async def serve(database: str, folder: Path) -> None:
    """Receive, handle, relay and rescue until SIGTERM."""
    trigger, reach = install(database)
    inbox = make_inbox(database, folder, reach)
    relay.RESCUE_INTERVAL, relay.MARGIN = 0.1, -19.0  # leases of effects expire after a second
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if trigger is not None:
        trigger.is_armed = True
    async with served(inbox) as port:
        runtime = inbox._runtime
        rescuing = asyncio.create_task(keep_rescuing(runtime.store, runtime.handlers, runtime.sources, 0.1))
        print(f"ready {port}", flush=True)
        await stop.wait()
        rescuing.cancel()


async def operate(database: str, part: str) -> None:
    """Run one operation of a person."""
    trigger, _ = install(database)
    store = make_store(Settings(database=database, migrate="never", claim_timeout=10.0))
    if part == "migrate":
        store.settings = Settings(database=database, claim_timeout=10.0)
    if trigger is not None:
        trigger.is_armed = True
    await store.open()
    try:
        if part == "prune":
            await prune(store, [Horizon("stripe", 30 * DAY, 10 * DAY)], effects=60 * DAY)
        elif part == "replay":
            await replay(store, Selection(), actor="ann")
    finally:
        await store.close()
    print("done", flush=True)


async def main(database: str, folder: str, part: str) -> None:
    if part in ("prune", "replay", "migrate"):
        await operate(database, part)
    else:
        await serve(database, Path(folder))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
