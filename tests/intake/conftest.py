"""The brokers that the suite in `test_broker.py` runs on. Each is a real broker, or a stand-in that the docs name."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from oncehook.intake import kafka
from tests.support.broker_servers import KafkaMock, NatsServer
from tests.support.intake import BrokerQueue, sqs_queue
from tests.support.intake_brokers import kafka_intake, nats_intake

BROKERS: dict[str, tuple[str, Callable[[Any], AbstractAsyncContextManager[BrokerQueue]]]] = {
    "sqs": ("moto", sqs_queue),
    "nats": ("nats_server", nats_intake),
    "kafka": ("kafka_mock", kafka_intake),
}
"""Name → the fixture of its server, and a context manager that makes a queue on it."""

LONG = (
    "test_message_that_cannot_be_claimed",
    "test_message_whose_reading_fails",
    "test_consumer_that_stops_leaves_its_messages",
    "test_messages_with_a_missing_key",
    "test_inbox_starts_while_the_broker_is_down",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A group of the mock of Kafka waits for 3 s before its first message: most hostile messages are a long run."""
    for item in items:
        if "[kafka" in item.name and item.name.startswith(LONG) and "unsealed" not in item.name:
            item.add_marker(pytest.mark.rest)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A private NATS server, which the tests of a process share."""
    with NatsServer(tmp_path_factory.mktemp("nats")).running() as server:
        assert isinstance(server, NatsServer)
        yield server


@pytest.fixture(scope="session")
def kafka_mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaMock]:
    """A private mock of Kafka, which the tests of a process share."""
    with KafkaMock(tmp_path_factory.mktemp("kafka")).running() as server:
        assert isinstance(server, KafkaMock)
        yield server


@pytest.fixture(params=BROKERS)
async def queue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerQueue]:
    """An empty queue of each broker in turn, and the environment that leads this process to it."""
    fixture, make_queue = BROKERS[request.param]
    monkeypatch.setattr(kafka, "CALL_SECONDS", 2.5)
    monkeypatch.setattr(kafka, "SESSION_SECONDS", 5.0)
    async with make_queue(request.getfixturevalue(fixture)) as queue:
        for name, value in queue.environment.items():
            monkeypatch.setenv(name, value)
        yield queue
        await queue.heal()  # other tests share the server
