"""SIGKILL of processes with an intake: no acked event is lost, and none is recorded twice.

The messages are in SQS (moto), so they survive the processes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.aws import Moto
from tests.support.counts import KILLS, Repetitions, count
from tests.support.encryption import ring
from tests.support.forks import ForkedService
from tests.support.intake import SqsQueue, message, sqs_queue
from tests.support.recording_senders import Ledger, assert_every_ack_is_recorded, send
from tests.support.serve import write_config
from tests.support.servers import run_sql
from tests.support.waiting import eventually, pause_at_random

pytestmark = pytest.mark.anyio

CONNECTIONS = 8
EVENTS = "SELECT event_id FROM webhook_receipts WHERE consumer = 'main'"


@pytest.fixture
async def queue(moto: Moto) -> AsyncIterator[SqsQueue]:
    async with sqs_queue(moto) as queue:
        assert isinstance(queue, SqsQueue)
        yield queue


@pytest.fixture
def start(sqlite: str, tmp_path: Path, queue: SqsQueue) -> Callable[[], ForkedService]:
    """Starts `oncehook serve` with this queue, through the proxy."""
    config = write_config(tmp_path, sqlite, 'log_level = "error"', f"keys = {ring('2026a')}")
    config.write_text(f'{config.read_text()}intake = "{queue.intake}"\n')
    environment: dict[str, Any] = queue.environment
    return lambda: ForkedService(config, **environment)


@pytest.mark.torture
async def test_consumer_that_is_killed_between_the_commit_and_the_ack_claims_the_event_once(
    sqlite: str, queue: SqsQueue, start: Callable[[], ForkedService]
) -> None:
    await queue.put(message("evt_1"))
    queue.proxy.lose_request(b"DeleteMessageBatch")
    process = await asyncio.to_thread(start)
    try:
        await asyncio.wait_for(queue.proxy.lost.wait(), 30)
        assert run_sql(sqlite, EVENTS) == [("evt_1",)], "the commit comes before the ack"
    finally:
        process.kill()
    assert await queue.messages() == 1, "the message is still in the queue"
    process = await asyncio.to_thread(start)
    try:

        async def is_acked() -> bool:
            return await queue.messages() == 0

        await eventually(is_acked, "the message is delivered again and acked")
        assert run_sql(sqlite, EVENTS) == [("evt_1",)]
    finally:
        process.kill()


async def kill_under_load(sqlite: str, queue: SqsQueue, start: Callable[[], ForkedService], kills: int) -> None:
    """Kill the service again and again under load, then let it claim everything that waits."""
    ledger = Ledger(random.randrange(2**32))
    for _ in range(kills):
        process = await asyncio.to_thread(start)
        try:
            sending = [asyncio.create_task(send(ledger, process.port)) for _ in range(CONNECTIONS)]
            await ledger.until_more(ledger.chance.randrange(1, 60))
            await pause_at_random(ledger.chance, 0.05)
        finally:
            process.kill()
        count(KILLS)
        await asyncio.wait_for(asyncio.gather(*sending), 10)
    process = await asyncio.to_thread(start)
    try:

        async def is_empty() -> bool:
            return await queue.messages() == 0

        await eventually(is_empty, "every message is claimed", within=60)
    finally:
        process.kill()
    ledger.accepted = list(dict.fromkeys(ledger.accepted))  # a duplicate is also accepted: the consumer finds out
    assert_every_ack_is_recorded(sqlite, ledger)
    assert await queue.dead() == 0, "no message became a dead letter"


@pytest.mark.rest
async def test_kills_under_load_lose_no_event_that_was_acked_from_the_queue(
    sqlite: str, queue: SqsQueue, start: Callable[[], ForkedService]
) -> None:
    await kill_under_load(sqlite, queue, start, kills=2)


@pytest.mark.torture
async def test_many_kills_under_load_lose_no_event_that_was_acked_from_the_queue(
    sqlite: str, queue: SqsQueue, start: Callable[[], ForkedService], repetitions: Repetitions
) -> None:
    await kill_under_load(sqlite, queue, start, kills=repetitions(10, 40))
