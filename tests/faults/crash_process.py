"""A process that does one part of Oncehook's work, with a crash point in it. tests/support/crashes.py starts it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
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


def disconnect(database: str) -> None:
    """End every session of the database but this one."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@dataclass(frozen=True)
class Work:
    """What the process does, and the point at which it crashes, if there is one."""

    database: str
    folder: Path
    part: str
    point: str | None = None
    fault: str = "kill"

    @property
    def name(self) -> str:
        return f"{self.part}-{self.point or 'heir'}"

    @property
    def reached(self) -> Path:
        """A file that the process makes at the point."""
        return self.folder / f"reached-{self.point}"

    def crash(self) -> None:
        self.reached.touch()
        if self.fault == "disconnect":
            disconnect(self.database)
        else:
            {"kill": kill, "cancel": cancel}[self.fault]()

    def install(self) -> tuple[crash_hooks.Trigger | None, Callable[[str], None]]:
        """Install the point, if there is one."""
        if self.point is None:
            return None, lambda step: None
        dialect = "sqlite" if self.database.startswith("sqlite") else "postgres"
        return crash_hooks.install(crash_points.find(self.point), dialect, self.crash)


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


async def serve(work: Work, ready: Connection) -> None:
    """Receive, handle, relay and rescue until SIGTERM."""
    trigger, reach = work.install()
    inbox = make_inbox(work.database, work.folder, reach)
    relay.RESCUE_INTERVAL, relay.MARGIN = 0.1, -19.0  # leases of effects expire after a second
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if trigger is not None:
        trigger.is_armed = True
    async with served(inbox) as port:
        runtime = inbox._runtime
        rescuing = asyncio.create_task(keep_rescuing(runtime.store, runtime.handlers, runtime.sources, 0.1))
        ready.send(port)
        await stop.wait()
        rescuing.cancel()


async def operate(work: Work) -> None:
    """Run one operation of a person."""
    trigger, _ = work.install()
    store = make_store(Settings(database=work.database, migrate="never", claim_timeout=10.0))
    if work.part == "migrate":
        store.settings = Settings(database=work.database, claim_timeout=10.0)
    if trigger is not None:
        trigger.is_armed = True
    await store.open()
    try:
        if work.part == "prune":
            await prune(store, [Horizon("stripe", 30 * DAY, 10 * DAY)], effects=60 * DAY)
        elif work.part == "replay":
            await replay(store, Selection(), actor="ann")
    finally:
        await store.close()


def main(work: Work, ready: Connection) -> None:
    """Do the work. Without a server, nothing is sent through `ready`, which closes at the end of the process."""
    log = (work.folder / f"{work.name}.log").open("ab", buffering=0)
    os.dup2(log.fileno(), sys.stderr.fileno())
    asyncio.run(operate(work) if work.part in ("prune", "replay", "migrate") else serve(work, ready))
