"""The database goes under load and the process is killed: an event with a 2xx response is recorded exactly once."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.counts import KILLS, Repetitions, count
from tests.support.events import STRIPE_SECRET
from tests.support.proxy import Proxy, proxied
from tests.support.recording_senders import Ledger, send
from tests.support.serve import Process
from tests.support.servers import run_sql
from tests.support.spool import spooled
from tests.support.waiting import eventually, pause_at_random

pytestmark = pytest.mark.anyio

CONNECTIONS = 8
STORED = "SELECT event_id, body FROM webhook_receipts r LEFT JOIN webhook_payloads ON receipt_id = r.id"


def write_spool_config(folder: Path, database: str, *lines: str) -> Path:
    """A configuration whose Stripe source is spooled."""
    file = folder / "oncehook.toml"
    spool = [f'database = "{database}"', f'spool = "{folder / "spool"}"', 'claim_timeout = "2s"', 'log_level = "error"']
    source = ["[sources.stripe]", f'secrets = ["{STRIPE_SECRET}"]', "spool = true"]
    file.write_text("\n".join([*spool, *lines, *source]) + "\n")
    return file


def assert_every_ack_is_recorded(database: str, ledger: Ledger) -> None:
    seed = f"repeat with Ledger({ledger.seed})"
    rows = run_sql(database, STORED)
    stored = dict(rows)
    assert not ledger.odd, f"{ledger.odd[:3]}: {seed}"
    assert len(rows) == len(stored), f"an event has two rows: {seed}"
    lost = sorted(event_id for event_id in ledger.acked if stored.get(event_id) != ledger.bodies[event_id])
    assert not lost, f"{len(lost)} acked and lost, such as {lost[:3]}: {seed}"


async def run_until_killed(config: Path, ledger: Ledger, proxy: Proxy, *, while_draining: bool) -> None:
    """Start the process, cut the database off under load, and kill the process while it spools or drains."""
    service = await asyncio.to_thread(Process, config, "--no-worker")
    try:
        sending = [asyncio.create_task(send(ledger, service.port)) for _ in range(CONNECTIONS)]
        await ledger.until_more(20)
        proxy.refuse()
        await ledger.until_more(100 + ledger.chance.randrange(200))
        if while_draining:
            proxy.accept()
            await pause_at_random(ledger.chance, 1.5)
    finally:
        await asyncio.to_thread(service.kill)
        count(KILLS)
        proxy.accept()
    await asyncio.wait_for(asyncio.gather(*sending), 10)


async def kill_again_and_again(database: str, folder: Path, kills: int) -> None:
    ledger = Ledger(random.randrange(2**32))
    async with proxied(database) as (proxy, through):
        config = write_spool_config(folder, through)
        for number in range(kills):
            await run_until_killed(config, ledger, proxy, while_draining=number % 2 == 1)
        service = await asyncio.to_thread(Process, config, "--no-worker")
        try:
            await eventually(lambda: not spooled(folder / "spool"), "the spool is empty", within=60)
        finally:
            await asyncio.to_thread(service.end)
    assert_every_ack_is_recorded(database, ledger)
    assert list((folder / "spool").iterdir()) == []


@pytest.mark.rest
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_process_killed_while_it_spools_and_drains_loses_no_ack(database: str, tmp_path: Path) -> None:
    await kill_again_and_again(database, tmp_path, 2)


@pytest.mark.torture
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_many_kills_while_spooling_and_draining_lose_no_ack(
    database: str, tmp_path: Path, repetitions: Repetitions
) -> None:
    await kill_again_and_again(database, tmp_path, repetitions(10, 40))


@pytest.mark.torture
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_two_processes_share_a_spool_and_one_claims_what_the_killed_one_left(
    database: str, tmp_path: Path
) -> None:
    ledger = Ledger(random.randrange(2**32))
    async with proxied(database) as (proxy, through):
        config = write_spool_config(tmp_path, through)
        one, other = await asyncio.gather(*(asyncio.to_thread(Process, config, "--no-worker") for _ in range(2)))
        try:
            sending = [asyncio.create_task(send(ledger, service.port)) for service in (one, other) for _ in range(4)]
            await ledger.until_more(20)
            proxy.refuse()
            await ledger.until_more(200)
            await asyncio.to_thread(one.kill)
            await ledger.until_more(50)
            proxy.accept()
            await eventually(lambda: not spooled(tmp_path / "spool"), "the other process claims everything")
        finally:
            await asyncio.to_thread(one.kill)
            await asyncio.to_thread(other.end)
        await asyncio.wait_for(asyncio.gather(*sending), 10)
    assert_every_ack_is_recorded(database, ledger)
