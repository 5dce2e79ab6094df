"""Taskiq: tasks of a broker. Taskiq does not compare task ids: a second message with the same id runs again."""

from typing import Any

from taskiq import AsyncBroker, AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import Task, TaskMessage
from oncehook.task_queues.loop_client import LoopClient


class TaskiqAdapter:
    """Hands over messages to a broker, which it starts at the first one unless `startup` is False."""

    def __init__(self, broker: AsyncBroker, *, startup: bool) -> None:
        self.broker = broker
        self._started: LoopClient[AsyncBroker] | None = LoopClient(self._start, _stop) if startup else None

    def check(self) -> None:
        if type(self.broker).__name__ == "PubSubBroker":
            raise ConfigurationError(
                "Taskiq's PubSubBroker stores nothing, so tasks without a listening worker are lost: use "
                "ListQueueBroker or RedisStreamBroker"
            )

    def find(self, task: object) -> Task | None:
        if isinstance(task, str):
            known = self.broker.find_task(task)
            return Task(task, None if known is None else known.original_func)
        if isinstance(task, AsyncTaskiqDecoratedTask) and self.broker.find_task(task.task_name) is task:
            return Task(task.task_name, task.original_func)
        return None

    async def send(self, message: TaskMessage) -> None:
        if self._started is not None:
            await self._started.get()
        task = self.broker.find_task(message.name)
        labels = {} if task is None else task.labels
        kicker: AsyncKicker[Any, Any] = AsyncKicker(message.name, self.broker, labels)
        await kicker.with_task_id(message.key).kiq(*message.args, **message.kwargs)

    async def close(self) -> None:
        if self._started is not None:
            await self._started.close()

    async def _start(self) -> AsyncBroker:
        await self.broker.startup()
        return self.broker


async def _stop(broker: AsyncBroker) -> None:
    await broker.shutdown()


def make_adapter(broker: AsyncBroker, *, startup: bool = True) -> TaskiqAdapter:
    return TaskiqAdapter(broker, startup=startup)
