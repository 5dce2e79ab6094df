"""Taskiq brokers: which tasks they have, who starts them, and a broker that would lose tasks."""

import pytest
from taskiq import AsyncBroker, InMemoryBroker, TaskiqEvents
from taskiq.brokers.shared_broker import async_shared_broker
from taskiq_redis import PubSubBroker

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import TaskMessage
from oncehook.task_queues.taskiq import make_adapter

pytestmark = [pytest.mark.anyio, pytest.mark.system]

MESSAGE = TaskMessage(name="send", key="k" * 40, args=["in_1"], kwargs={}, seconds=1)


def count_starts(broker: AsyncBroker) -> list[str]:
    events: list[str] = []
    broker.add_event_handler(TaskiqEvents.CLIENT_STARTUP, lambda state: events.append("start"))
    broker.add_event_handler(TaskiqEvents.CLIENT_SHUTDOWN, lambda state: events.append("stop"))
    return events


def test_task_is_found_by_its_object_and_by_its_name() -> None:
    broker = InMemoryBroker()

    @broker.task(task_name="send")
    async def send(invoice: str) -> None: ...

    @async_shared_broker.task(task_name="shared")
    async def shared(invoice: str) -> None: ...

    adapter = make_adapter(broker)
    found = adapter.find(send)
    assert found is not None and found.name == "send" and adapter.find("send") == found
    assert adapter.find(shared) is not None
    assert make_adapter(InMemoryBroker()).find(send) is None and adapter.find(print) is None


async def test_broker_is_started_once_and_stopped_at_the_close() -> None:
    broker, ran = InMemoryBroker(await_inplace=True), list[str]()
    events = count_starts(broker)

    @broker.task(task_name="send")
    async def send(invoice: str) -> None:
        ran.append(invoice)

    adapter = make_adapter(broker)
    for _ in range(2):
        await adapter.send(MESSAGE)
    assert events == ["start"] and ran == ["in_1", "in_1"]
    await adapter.close()
    assert events == ["start", "stop"]


async def test_broker_that_the_app_starts_is_left_alone() -> None:
    broker = InMemoryBroker()
    events = count_starts(broker)

    @broker.task(task_name="send")
    async def send(invoice: str) -> None: ...

    adapter = make_adapter(broker, startup=False)
    await adapter.send(MESSAGE)
    await adapter.close()
    assert events == []


def test_broker_that_stores_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="PubSubBroker stores nothing"):
        make_adapter(PubSubBroker("redis://127.0.0.1:1/0")).check()
