"""SIGKILL at a random moment under load: an event with a 2xx response is recorded once and completely."""

import asyncio
import random
from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.counts import KILLS, Repetitions, count
from tests.support.forks import ForkedService
from tests.support.recording_senders import Ledger, assert_every_ack_is_recorded, send
from tests.support.serve import write_config
from tests.support.servers import run_sql
from tests.support.waiting import pause_at_random

pytestmark = pytest.mark.anyio

CONNECTIONS = 8


async def kill_under_load(config: Path, ledger: Ledger) -> None:
    """Start the service, deliver over several connections, and kill it at a random moment."""
    service = ForkedService(config)
    try:
        sending = [asyncio.create_task(send(ledger, service.port)) for _ in range(CONNECTIONS)]
        await ledger.until_more(ledger.chance.randrange(1, 250))
        await pause_at_random(ledger.chance, 0.01)
    finally:
        service.kill()
    count(KILLS)
    await asyncio.wait_for(asyncio.gather(*sending), 10)


async def kill_again_and_again(database: str, folder: Path, kills: int) -> Ledger:
    config = write_config(folder, database, 'log_level = "error"')
    ledger = Ledger(random.randrange(2**32))
    for _ in range(kills):
        await kill_under_load(config, ledger)
        assert_every_ack_is_recorded(database, ledger)
    service = ForkedService(config)
    sending = [asyncio.create_task(send(ledger, service.port)) for _ in range(CONNECTIONS)]
    await ledger.until_more(50)
    assert service.end() == 0
    await asyncio.wait_for(asyncio.gather(*sending), 10)
    assert_every_ack_is_recorded(database, ledger)
    return ledger


@pytest.mark.sampled(1)
async def test_kills_under_load_lose_no_acked_event(database: str, tmp_path: Path) -> None:
    ledger = await kill_again_and_again(database, tmp_path, 3)
    assert len(ledger.acked) > 50


@pytest.mark.sampled(1)
async def test_kills_under_load_leave_each_event_with_the_receipts_of_all_its_consumers(
    database: str, tmp_path: Path
) -> None:
    store = make_store(Settings(database=database))
    await store.open()
    await store.consumers.register({("ledger", "stripe"): ["*"], ("search", "stripe"): ["invoice.*"]}, {})
    await store.close()
    ledger = await kill_again_and_again(database, tmp_path, 1)
    receipts = run_sql(database, "SELECT event_id, consumer FROM webhook_receipts")
    events = {event_id for event_id, _ in receipts}
    assert events >= ledger.acked and len(events) >= 50
    expected = [(event_id, consumer) for event_id in events for consumer in ("ledger", "main", "search")]
    assert sorted(receipts) == sorted(expected), f"repeat with Ledger({ledger.seed})"


@pytest.mark.torture
async def test_many_kills_under_load_lose_no_acked_event(
    database: str, tmp_path: Path, repetitions: Repetitions
) -> None:
    await kill_again_and_again(database, tmp_path, repetitions(45, 200))
