"""The power is cut while the database is down and deliveries are spooled: every acked event is in the spool."""

import asyncio
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from oncehook.receiver.spool.directory import SUFFIX
from oncehook.receiver.spool.record import read
from tests.faults.power import FOLDER, LEFT, Folder, Step, compile_library, read_journal
from tests.faults.test_power_loss import Witness
from tests.faults.test_spool_faults import write_spool_config
from tests.support.counts import POWER_CUTS, Repetitions, count
from tests.support.proxy import proxied
from tests.support.recording_senders import send
from tests.support.serve import Process
from tests.support.servers import run_sql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder needs a C compiler"),
    pytest.mark.skipif(not Path("/proc").exists(), reason="the recorder is loaded by Linux's dynamic linker"),
    pytest.mark.parametrize("database", ["postgres"], indirect=True),
]


async def record(database: str, folder: Path, events: int) -> tuple[Witness, set[str]]:
    """Deliver while the database is down. Returns the senders, and the events that are in the database."""
    ledger = Witness(random.randrange(2**32))
    ledger.journal, ledger.acked_at = folder / "journal", {}
    ledger.journal.touch()
    recorder = {
        "POWER_FOLDER": str(folder / "spool"),
        "POWER_JOURNAL": str(ledger.journal),
        "LD_PRELOAD": str(compile_library("power.c", folder)),
    }
    async with proxied(database) as (proxy, through):
        config = write_spool_config(folder, through, 'spool_limit = "100MiB"')
        service = await asyncio.to_thread(partial(Process, config, "--no-worker", cwd=folder, **recorder))
        try:
            sending = [asyncio.create_task(send(ledger, service.port)) for _ in range(8)]
            await ledger.until_more(20)
            proxy.refuse()
            for _ in range(events // 100):
                await ledger.until_more(100)
        finally:
            await asyncio.to_thread(service.kill)
        await asyncio.gather(*sending)
    return ledger, {event_id for (event_id,) in run_sql(database, "SELECT event_id FROM webhook_receipts")}


def lost_after(folder: dict[str, bytes], claimed: set[str], ledger: Witness, journal: int) -> list[str]:
    """The events that were acked when the journal had this length, and are neither claimed nor in the spool."""
    spooled = {
        claim.event_id: claim.body
        for name, data in folder.items()
        if name.endswith(SUFFIX)
        for claims in read(data).deliveries
        for claim in claims
    }
    acked = [event_id for event_id, at in ledger.acked_at.items() if at <= journal]
    return [event for event in acked if event not in claimed and spooled.get(event) != ledger.bodies[event]]


def cut(steps: list[Step], ledger: Witness, claimed: set[str], cuts: int) -> list[str]:
    """Cut the power at random moments. Returns the events that were acked and lost, with the moment."""
    chance = random.Random(ledger.seed)
    moments = set(chance.sample(range(len(steps)), min(cuts, len(steps))))
    count(POWER_CUTS, len(moments))
    folder, lost = Folder(), []
    for number, step in enumerate(steps):
        folder.do(step)
        if number in moments:
            left = chance.choice(LEFT)
            after = folder.after_a_cut(left, chance)
            lost += [f"{event} at {number}, {left} left" for event in lost_after(after, claimed, ledger, step.end)]
    return lost


@pytest.mark.rest
async def test_power_cuts_lose_no_spooled_event(database: str, tmp_path: Path) -> None:
    ledger, claimed = await record(database, tmp_path, 300)
    assert len(ledger.acked - claimed) > 100, "most events were acked from the spool"
    steps = list(read_journal(ledger.journal))
    lost = cut(steps, ledger, claimed, 60)
    assert not lost, f"{len(lost)} acked and lost, such as {lost[:3]}: seed {ledger.seed}"
    unsynced = [step for step in steps if step.action != "e" or step.file == FOLDER]
    assert cut(unsynced, ledger, claimed, 60), "without its syncs, the spool must lose events"


@pytest.mark.torture
async def test_many_power_cuts_lose_no_spooled_event(database: str, tmp_path: Path, repetitions: Repetitions) -> None:
    ledger, claimed = await record(database, tmp_path, repetitions(1000, 3000))
    lost = cut(list(read_journal(ledger.journal)), ledger, claimed, repetitions(200, 1000))
    assert not lost, f"{len(lost)} acked and lost, such as {lost[:3]}: seed {ledger.seed}"
