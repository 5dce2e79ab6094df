"""Dramatiq: actors of a broker. Dramatiq does not compare message ids: a second message with the same id runs again."""

import dramatiq
from dramatiq.errors import ActorNotFound

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import Task, TaskMessage, UnknownTask


class DramatiqAdapter:
    """Hands over messages to a broker. Only an actor knows its queue, so this process must have declared it."""

    def __init__(self, broker: dramatiq.Broker) -> None:
        self.broker = broker

    def check(self) -> None:
        if getattr(self.broker, "confirm_delivery", True) is False:
            raise ConfigurationError(
                "Dramatiq does not wait until RabbitMQ has stored a message, so tasks can be lost: pass "
                "confirm_delivery=True to RabbitmqBroker"
            )

    def find(self, task: object) -> Task | None:
        if isinstance(task, dramatiq.Actor):
            return Task(task.actor_name, task.fn) if task.broker is self.broker else None
        if isinstance(task, str) and task in self.broker.actors:
            return Task(task, self.broker.actors[task].fn)
        return None

    def send(self, message: TaskMessage) -> None:
        try:
            actor = self.broker.get_actor(message.name)
        except ActorNotFound:
            raise UnknownTask(
                f"the actor {message.name} is not declared in this process: import its module where the inbox is made"
            ) from None
        made = actor.message_with_options(args=tuple(message.args), kwargs=message.kwargs)
        self.broker.enqueue(made.copy(message_id=message.key))

    async def close(self) -> None:
        """The broker is the user's own."""


def make_adapter(broker: dramatiq.Broker) -> DramatiqAdapter:
    return DramatiqAdapter(broker)
