"""A backup that is made and restored as docs/operate.md describes loses nothing that was in it."""

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.effects.effect import Effect
from oncehook.testing import deliver, drain
from tests.support.command_line import Ran, Run
from tests.support.events import stripe_body
from tests.support.serve import write_config
from tests.support.servers import Postgres, run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class Backup:
    """Makes and restores a backup with the tools that the runbook names."""

    def __init__(self, database: str, postgres: Postgres, folder: Path) -> None:
        self.database = database
        self.postgres = postgres
        self.file = folder / "backup"

    @property
    def is_sqlite(self) -> bool:
        return self.database.startswith("sqlite:")

    @property
    def path(self) -> Path:
        return Path(self.database.removeprefix("sqlite:///"))

    def make(self) -> None:
        if self.is_sqlite:  # as `.backup` of the sqlite3 program does
            with (
                contextlib.closing(sqlite3.connect(self.path)) as live,
                contextlib.closing(sqlite3.connect(self.file)) as copy,
            ):
                live.backup(copy)
        else:
            self._run("pg_dump", "--format=custom", f"--file={self.file}", self.database)

    def restore(self) -> str:
        """Restore the backup, and return the address of the restored database."""
        if self.is_sqlite:
            for suffix in ("-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            shutil.copy(self.file, self.path)
            return self.database
        new = self.postgres.database()
        self._run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={new}", str(self.file))
        return new

    def _run(self, program: str, *options: str) -> None:
        result = subprocess.run([self.postgres.binaries / program, *options], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


@pytest.fixture
def backup(database: str, postgres: Postgres, tmp_path: Path) -> Backup:
    return Backup(database, postgres, tmp_path)


async def run_in_thread(run: Run, *words: str) -> Ran:
    """Run a command in a thread, because it starts its own event loop."""
    return await asyncio.to_thread(run, *words)


def make_shop(database: str, performed: list[str], handled: list[str]) -> Inbox:
    """Return an inbox that records the events it handled and the effects it performed."""
    inbox = Inbox(database, worker=False, lease="1s")
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect
    async def send_receipt(effect: Effect) -> None:
        performed.append(effect.idempotency_key)

    @inbox.on("stripe", "*", retry=Retry(first=0, most=0))
    async def paid(event: Event) -> None:
        handled.append(event.id)
        await event.effect(f"receipt:{event.id}", send_receipt)

    return inbox


async def work_until_handled(inbox: Inbox, handled: list[str], events: set[str]) -> None:
    """Run a worker until these events are handled and four effects are done."""

    async def effects_are_done() -> bool:
        return (await inbox._runtime.store.effects.counts()).get("done", 0) >= 4

    inbox._runtime.start_worker()
    await eventually(lambda: events <= set(handled), f"{events} are handled")
    await eventually(effects_are_done, "four effects are done")
    await inbox._runtime.stop_work()


async def test_restored_backup_continues_where_it_was_made(backup: Backup, run: Run, in_folder: Path) -> None:
    write_config(in_folder, backup.database)
    performed: list[str] = []
    handled: list[str] = []
    inbox = make_shop(backup.database, performed, handled)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_done"))
        await drain(inbox, effects=False)  # the event is handled, and its effect waits
        held = await deliver(inbox, "stripe", stripe_body("evt_held"))
        await inbox._runtime.store.leases.take(1, 0.5, "a worker that the backup knows")
        await deliver(inbox, "stripe", stripe_body("evt_waits"))
        backup.make()  # while the inbox is running
        lost = await deliver(inbox, "stripe", stripe_body("evt_lost"))
        assert lost.outcome == (202, "accepted")
        await work_until_handled(inbox, handled, {"evt_done", "evt_held", "evt_waits", "evt_lost"})
    before = list(performed)
    assert len(set(before)) == len(before) == 4

    restored = backup.restore()
    write_config(in_folder, restored)
    assert "up to date" in (await run_in_thread(run, "migrate")).out
    assert (await run_in_thread(run, "doctor")).code == 0
    newest = await run_in_thread(run, "events", "--limit", "1", "--json")
    assert "evt_waits" in newest.out, "the newest event of the backup is shown"
    waiting = await run_in_thread(run, "effects", "--status", "waiting", "--json")
    assert waiting.out.count("receipt:") == 1 and "receipt:evt_done" in waiting.out

    handled.clear()
    performed.clear()
    again = make_shop(restored, performed, handled)
    async with again.lifespan():
        assert (await deliver(again, "stripe", stripe_body("evt_done"))).outcome == (200, "duplicate")
        assert (await deliver(again, "stripe", stripe_body("evt_waits"))).outcome == (200, "duplicate")
        redelivered = await deliver(again, "stripe", stripe_body("evt_lost"))
        assert redelivered.outcome == (202, "accepted")
        await work_until_handled(again, handled, {"evt_held", "evt_waits", "evt_lost"})
        await drain(again)
    assert sorted(handled) == ["evt_held", "evt_lost", "evt_waits"], "evt_done was handled before the backup"
    assert sorted(performed) == sorted(before), "a repeated effect has the same idempotency key"
    assert held.receipt is not None and redelivered.receipt is not None and redelivered.receipt > held.receipt
    assert run_sql(restored, "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(4,)]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_restored_dump_has_its_partitions_and_can_be_pruned(
    backup: Backup, make_inbox: Callable[..., Inbox], run: Run, in_folder: Path
) -> None:
    write_config(in_folder, backup.database)
    async with make_inbox().lifespan():
        pass
    partitions = (
        "SELECT count(*), min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass"
    )
    before = run_sql(backup.database, partitions)
    backup.make()
    restored = backup.restore()
    assert run_sql(restored, partitions) == before and before[0][0] > 1
    write_config(in_folder, restored)
    assert (await run_in_thread(run, "prune", "--dry-run")).code in (0, 1)
    assert (await run_in_thread(run, "prune")).code in (0, 1)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_copy_of_a_live_sqlite_file_is_not_a_backup(inbox: Inbox, database: str, tmp_path: Path) -> None:
    """Shows why the runbook warns of it: the newest data is in the write-ahead log."""
    assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 202
    copy = tmp_path / "copy.db"
    shutil.copy(database.removeprefix("sqlite:///"), copy)
    try:
        rows = run_sql(f"sqlite:///{copy}", "SELECT event_id FROM webhook_receipts")
    except sqlite3.OperationalError:  # even the tables are missing
        rows = []
    assert rows == []
    assert run_sql(database, "SELECT event_id FROM webhook_receipts") == [("evt_1",)]
