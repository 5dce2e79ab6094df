"""SIGKILL between the steps of an intake, and a broker that restarts: every message is one event, and none is lost."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.intake_worker import HEIR
from tests.support.broker_servers import KafkaMock, NatsServer
from tests.support.intake import BrokerQueue, assert_claimed, intake_inbox, message
from tests.support.intake_brokers import kafka_intake, nats_intake
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

POINTS = ["after the receive", "after the claim", "after the ack"]
SAMPLE = [POINTS[1], *(pytest.param(point, marks=pytest.mark.torture) for point in (POINTS[0], POINTS[2]))]
"""The point between claim and ack, and the others as a long run."""

IDS = [f"evt_{number:02}" for number in range(20)]


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats").running() as server:
        assert isinstance(server, NatsServer)
        yield server


@pytest.fixture
def kafka_mock(tmp_path: Path) -> Iterator[KafkaMock]:
    with KafkaMock(tmp_path / "kafka").running() as server:
        assert isinstance(server, KafkaMock)
        yield server


class IntakeProcess:
    def __init__(self, database: str, queue: BrokerQueue, point: str) -> None:
        command = [sys.executable, "-m", "tests.faults.intake_worker", database, queue.intake, point]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_killed(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


async def assert_every_message_is_one_event(database: str, queue: BrokerQueue, point: str) -> None:
    """Fill the queue, with duplicates and out of order, kill a consumer at a point, and let another one finish."""
    shuffled = random.Random(point).sample([*IDS, *IDS[:5]], len(IDS) + 5)
    for event_id in shuffled:
        await queue.put(message(event_id))
    killed = IntakeProcess(database, queue, point)
    try:
        await eventually(killed.is_killed, f"the process is killed {point}")
    finally:
        killed.end()
    heir = IntakeProcess(database, queue, HEIR)
    try:
        await eventually(lambda: _claimed(database) == IDS, "every message is an event")

        async def is_empty() -> bool:
            return await queue.messages() == 0

        await eventually(is_empty, "every message is acked")
    finally:
        heir.end()
    assert _claimed(database) == IDS, "each event has one receipt"


def _claimed(database: str) -> list[str]:
    return [event_id for (event_id,) in run_sql(database, "SELECT event_id FROM webhook_receipts ORDER BY event_id")]


@pytest.mark.parametrize("point", SAMPLE)
async def test_consumer_of_nats_that_is_killed_loses_and_doubles_nothing(
    sqlite: str, nats_server: NatsServer, point: str
) -> None:
    async with nats_intake(nats_server) as queue:
        await assert_every_message_is_one_event(sqlite, queue, point)


@pytest.mark.torture
@pytest.mark.parametrize("point", SAMPLE)
async def test_consumer_of_kafka_that_is_killed_loses_and_doubles_nothing(
    sqlite: str, kafka_mock: KafkaMock, point: str
) -> None:
    async with kafka_intake(kafka_mock) as queue:
        await assert_every_message_is_one_event(sqlite, queue, point)


@pytest.mark.rest
async def test_messages_survive_a_nats_server_that_is_killed_and_started_again(
    sqlite: str, nats_server: NatsServer
) -> None:
    async with nats_intake(nats_server) as queue:
        inbox = intake_inbox(sqlite, queue)
        async with inbox.lifespan():
            await queue.put(message("evt_before"))
            await assert_claimed(inbox, queue, "evt_before")
            await queue.put(message("evt_waiting"))
            nats_server.kill()
            nats_server.start()
            await queue.put(message("evt_after"))
            await assert_claimed(inbox, queue, "evt_after", "evt_before", "evt_waiting")
