"""The power is cut at a random moment under load. On SQLite, acked events are recorded, and a handler's work and the
processed status are both there or both absent.

A library between the service and the kernel records every write and sync. From this journal, the test builds the files
as a power cut leaves them: writes that no sync has covered are lost, kept or torn.
"""

import asyncio
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.power import LEFT, Disk, compile_library, read_journal
from tests.support.counts import POWER_CUTS, Repetitions, count
from tests.support.recording_senders import Ledger, send
from tests.support.serve import ONCEHOOK, Process, write_config
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder needs a C compiler"),
    pytest.mark.skipif(not Path("/proc").exists(), reason="the recorder is loaded by Linux's dynamic linker"),
]

HOOKS = """
from oncehook import Inbox

inbox = Inbox(config={config!r})


@inbox.on("stripe", "*")
async def write(event, tx):
    await tx.execute("INSERT INTO ledger (event_id) VALUES (?)", event.id)
"""
CARELESS = """
import sqlite3

connect = sqlite3.connect


def connect_carelessly(*arguments, factory=sqlite3.Connection, **options):
    class Careless(factory):
        def execute(self, sql, *parameters):
            return super().execute(sql.replace("synchronous = FULL", "synchronous = NORMAL"), *parameters)

    return connect(*arguments, factory=Careless, **options)


sqlite3.connect = connect_carelessly
"""
"""Lets the store commit without waiting for the disk, as SQLite does by `synchronous=NORMAL`."""

STORED = "SELECT event_id, body, status FROM webhook_receipts r JOIN webhook_payloads ON receipt_id = r.id"
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'"


class Witness(Ledger):
    """Also records how long the journal was at an event's first ack."""

    journal: Path
    acked_at: dict[str, int]

    async def record(self, event_id: str, status: int, body: bytes) -> None:
        await super().record(event_id, status, body)
        if event_id in self.acked:
            self.acked_at.setdefault(event_id, self.journal.stat().st_size)


async def record(folder: Path, events: int, before: str = "") -> Witness:
    """Deliver and process `events` events with the recorder between the service and the kernel.

    The service runs the code `before` when it starts.
    """
    library, file = compile_library("power.c", folder), folder / "inbox.db"
    config = write_config(folder, f"sqlite:///{file}", 'log_level = "error"')
    (folder / "hooks.py").write_text(before + HOOKS.format(config=str(config)))
    ledger = Witness(random.randrange(2**32))
    ledger.journal, ledger.acked_at = folder / "journal", {}
    recorded = {"POWER_DATABASE": str(file), "POWER_JOURNAL": str(ledger.journal), "LD_PRELOAD": str(library)}
    make = f"import sqlite3; sqlite3.connect({str(file)!r}).execute('CREATE TABLE ledger (event_id TEXT)')"
    made = await asyncio.create_subprocess_exec(
        str(ONCEHOOK.with_name("python")), "-c", make, env={**os.environ, **recorded}
    )
    assert await made.wait() == 0
    service = Process(config, app="hooks:inbox", cwd=folder, **recorded)
    try:
        sending = [asyncio.create_task(send(ledger, service.port)) for _ in range(8)]
        for _ in range(events // 100):
            await ledger.until_more(100)

        async def are_processed() -> bool:
            return await asyncio.to_thread(run_sql, f"sqlite:///{file}", UNFINISHED + " AND id < 50") == [(0,)]

        await eventually(are_processed, "the first events are processed", within=60)
    finally:
        service.kill()
    await asyncio.gather(*sending)
    return ledger


def cut(folder: Path, ledger: Witness, cuts: int) -> None:
    chance = random.Random(ledger.seed)
    steps = list(read_journal(ledger.journal))
    assert any(step.action == "e" for step in steps), "the recorder saw no sync"
    first = next(i for i, step in enumerate(steps) if step.end >= min(ledger.acked_at.values()))
    moments = set(chance.sample(range(first, len(steps)), min(cuts, len(steps) - first)))
    disks = {1: Disk(), 2: Disk()}
    after = folder / "after"
    after.mkdir()
    for i, step in enumerate(steps):
        disks[step.file].do(step)
        if i in moments:
            left = chance.choice(LEFT)
            (after / "inbox.db-shm").unlink(missing_ok=True)
            (after / "inbox.db").write_bytes(disks[1].after_a_cut(left, chance))
            (after / "inbox.db-wal").write_bytes(disks[2].after_a_cut(left, chance))
            assert_consistent(after / "inbox.db", ledger, step.end, f"cut {i} with {left} left, seed {ledger.seed}")
    count(POWER_CUTS, len(moments))  # not those of the control, which lose events


def assert_consistent(file: Path, ledger: Witness, journal: int, detail: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], detail
        has_schema = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'webhook_payloads'").fetchall()
        rows = connection.execute(STORED).fetchall() if has_schema else []
        worked = [row[0] for row in connection.execute("SELECT event_id FROM ledger")]
    bodies = {event_id: body for event_id, body, _ in rows}
    acked = [event_id for event_id, at in ledger.acked_at.items() if at <= journal]
    lost = [event_id for event_id in acked if bodies.get(event_id) != ledger.bodies[event_id]]
    assert not lost, f"{len(lost)} of {len(acked)} acked and lost, such as {lost[:3]}: {detail}"
    assert len(worked) == len(set(worked)), f"work that was applied twice: {detail}"
    assert set(worked) == {event_id for event_id, _, status in rows if status == "processed"}, detail


async def test_power_cuts_under_load_lose_no_acked_event(tmp_path: Path) -> None:
    ledger = await record(tmp_path, 200)
    cut(tmp_path, ledger, 40)


async def test_power_cuts_lose_acked_events_if_commits_are_not_synced(tmp_path: Path) -> None:
    """The control: the same cuts find the loss that `synchronous=NORMAL` allows."""
    await assert_cuts_lose_events(tmp_path, 200, 40)


async def assert_cuts_lose_events(folder: Path, events: int, cuts: int) -> None:
    ledger = await record(folder, events, CARELESS)
    with pytest.raises(AssertionError, match="acked and lost"):
        cut(folder, ledger, cuts)


@pytest.mark.torture
async def test_many_power_cuts_under_load_lose_no_acked_event(tmp_path: Path, repetitions: Repetitions) -> None:
    ledger = await record(tmp_path, repetitions(1000, 3000))
    cut(tmp_path, ledger, repetitions(200, 1000))


@pytest.mark.torture
async def test_many_power_cuts_lose_acked_events_if_commits_are_not_synced(tmp_path: Path) -> None:
    await assert_cuts_lose_events(tmp_path, 1000, 200)
