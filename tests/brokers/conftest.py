"""Private brokers for these tests. Each starts when the first test asks for it, and tests share it."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from oncehook.brokers.pool import Publishers
from tests.support.broker_servers import KafkaMock, NatsServer, RabbitServer, RedisServer, Server
from tests.support.brokers import (
    ClassicRabbitQueue,
    KafkaQueue,
    MakeQueue,
    NatsQueue,
    Queue,
    RabbitQueue,
    RedisQueue,
    SqsQueue,
)

QUEUES: dict[str, type[Queue]] = {
    "nats": NatsQueue,
    "redis": RedisQueue,
    "kafka": KafkaQueue,
    "rabbitmq": RabbitQueue,
    "rabbitmq-classic": ClassicRabbitQueue,
}
SERVERS: dict[str, type[Server]] = {
    "nats": NatsServer,
    "redis": RedisServer,
    "kafka": KafkaMock,
    "rabbitmq": RabbitServer,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests with RabbitMQ in one process: its server takes ten seconds to start."""
    for item in items:
        if "[rabbitmq" in item.name or item.path.name == "test_rabbitmq.py":
            item.add_marker(pytest.mark.xdist_group("rabbitmq"))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """The server of a kind of broker. A test that kills it starts it again."""
    started: dict[str, Server] = {}

    def server(kind: str) -> Server:
        if kind not in started:
            new = SERVERS[kind](tmp_path_factory.mktemp(kind))
            new.start()
            started[kind] = new
        return started[kind]

    yield server
    for running in started.values():
        running.kill()


@pytest.fixture
async def publishers() -> AsyncIterator[Publishers]:
    """Connections to brokers, which are closed after the test."""
    publishers = Publishers()
    yield publishers
    await publishers.close()


@pytest.fixture
async def make_queue(servers: Callable[[str], Server], request: pytest.FixtureRequest) -> MakeQueue:
    """Make a queue of a kind of broker."""

    async def make(kind: str) -> Queue:
        queue = SqsQueue(request.getfixturevalue("aws")) if kind == "sqs" else QUEUES[kind](servers(QUEUES[kind].kind))
        await queue.create()
        return queue

    return make


@pytest.fixture(params=["nats", "redis", "kafka", "rabbitmq", "sqs"])
async def queue(make_queue: MakeQueue, request: pytest.FixtureRequest) -> Queue:
    """A queue of each kind of broker in turn."""
    return await make_queue(request.param)
