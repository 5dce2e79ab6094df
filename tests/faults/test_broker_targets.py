"""SIGKILL around a broker's acknowledgement, and a broker that is gone: at least once, always under the same key."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oncehook import Inbox
from tests.faults.relay_worker import HEIR
from tests.support.broker_servers import NatsServer, RedisServer
from tests.support.brokers import NatsQueue, Queue, RedisQueue
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

STATES = "SELECT status FROM webhook_effects"


@pytest.fixture(params=["nats", "redis"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queue]:
    server = NatsServer(tmp_path / "server") if request.param == "nats" else RedisServer(tmp_path / "server")
    with server.running():
        queue: Queue = NatsQueue(server) if request.param == "nats" else RedisQueue(server)
        await queue.create()
        yield queue


@pytest.fixture
async def config(sqlite: str, queue: Queue, tmp_path: Path) -> Path:
    """A configuration that allows the broker, on a database with one event."""
    allowed = queue.server.address("").rstrip("/")
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{sqlite}"\npoll = "50ms"\nlease = "1s"\neffect_targets = ["{allowed}"]\n')
    inbox = Inbox(sqlite, worker=False)
    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    return config


class Publishing:
    def __init__(self, config: Path, queue: Queue, point: str) -> None:
        command = [sys.executable, "-m", "tests.faults.broker_worker", str(config), queue.bare, point]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_killed(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("queue", "point", "published"),
    [
        pytest.param("redis", "before the publish", 1, marks=pytest.mark.torture),
        ("redis", "after the acknowledgement", 2),
        ("nats", "after the acknowledgement", 1),  # it deduplicates by the key
    ],
    indirect=["queue"],
)
async def test_message_of_a_killed_process_is_published_again_under_the_same_key(
    config: Path, sqlite: str, queue: Queue, point: str, published: int
) -> None:
    killed = Publishing(config, queue, point)
    try:
        await eventually(killed.is_killed, f"the process is killed {point}")
    finally:
        killed.end()
    assert run_sql(sqlite, STATES) == [("performing",)]
    heir = Publishing(config, queue, HEIR)
    try:
        await eventually(lambda: run_sql(sqlite, STATES) == [("done",)], "the effect is done")
    finally:
        heir.end()
    keys = [message.key for message in await queue.messages()]
    assert len(keys) == published and len(set(keys)) == 1


@pytest.mark.rest
@pytest.mark.parametrize("queue", ["redis"], indirect=True)
async def test_effect_waits_for_a_broker_that_is_gone_and_is_done_when_it_is_back(
    config: Path, sqlite: str, queue: Queue
) -> None:
    queue.server.kill()
    process = Publishing(config, queue, HEIR)
    try:
        await eventually(lambda: run_sql(sqlite, STATES) == [("retrying",)], "the first attempt has failed")
        queue.server.start()
        await eventually(lambda: run_sql(sqlite, STATES) == [("done",)], "a later attempt succeeds")
    finally:
        process.end()
    assert len(await queue.messages()) == 1
