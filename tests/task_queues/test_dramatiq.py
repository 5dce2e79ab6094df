"""Dramatiq brokers: which actors they have, and a broker that would lose tasks."""

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.stub import StubBroker

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import TaskMessage, UnknownTask
from oncehook.task_queues.dramatiq import DramatiqAdapter

pytestmark = pytest.mark.system  # it loads pika and Dramatiq


@pytest.fixture
def broker() -> StubBroker:
    return StubBroker()


def test_actor_is_found_by_its_object_and_by_its_name(broker: StubBroker) -> None:
    @dramatiq.actor(broker=broker, queue_name="mail")
    def send(invoice: str) -> None: ...

    adapter = DramatiqAdapter(broker)
    found = adapter.find(send)
    assert found is not None and found.name == "send" and adapter.find("send") == found
    assert DramatiqAdapter(StubBroker()).find(send) is None
    assert adapter.find("other") is None and adapter.find(print) is None
    adapter.send(TaskMessage(name="send", key="k" * 40, args=["in_1"], kwargs={}, seconds=1))
    message = dramatiq.Message.decode(broker.queues["mail"].get_nowait())
    assert (message.message_id, message.args, message.queue_name) == ("k" * 40, ("in_1",), "mail")


def test_actor_that_is_not_declared_here_is_named(broker: StubBroker) -> None:
    message = TaskMessage(name="gone", key="k", args=[], kwargs={}, seconds=1)
    with pytest.raises(UnknownTask, match="the actor gone is not declared in this process: import its module"):
        DramatiqAdapter(broker).send(message)


def test_rabbitmq_without_confirms_is_refused(broker: StubBroker) -> None:
    with pytest.raises(ConfigurationError, match="confirm_delivery=True"):
        DramatiqAdapter(RabbitmqBroker(url="amqp://127.0.0.1:1")).check()
    DramatiqAdapter(RabbitmqBroker(url="amqp://127.0.0.1:1", confirm_delivery=True)).check()
    DramatiqAdapter(broker).check()
