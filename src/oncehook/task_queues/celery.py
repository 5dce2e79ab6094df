"""Celery: tasks of an app, with their own routes and options.

Celery does not compare task ids: a second hand-over with the same id runs again. The task can read its id from
`self.request.id`.
"""

from typing import Any

from celery import Celery
from celery import Task as CeleryTask

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import Task, TaskMessage


class CeleryAdapter:
    """Hands over tasks with `apply_async`, or by name if this process does not have the task."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def check(self) -> None:
        if self.app.conf.task_always_eager:
            return
        options = self.app.conf.broker_transport_options or {}
        driver = self.app.connection_for_write().get_transport_cls().driver_type
        if driver == "amqp" and not options.get("confirm_publish"):
            raise ConfigurationError(
                "Celery does not wait until RabbitMQ has stored a task, so tasks can be lost: set "
                'app.conf.broker_transport_options = {"confirm_publish": True}'
            )

    def find(self, task: object) -> Task | None:
        if isinstance(task, str):
            known = self.app.tasks.get(task)
            return Task(task, _function(known))
        if isinstance(task, CeleryTask) and task.name in self.app.tasks:
            return Task(task.name, _function(task))
        return None

    def send(self, message: TaskMessage) -> None:
        task = self.app.tasks.get(message.name)
        options = {"args": message.args, "kwargs": message.kwargs, "task_id": message.key}
        if task is None:
            self.app.send_task(message.name, **options)
        else:
            task.apply_async(**options)

    async def close(self) -> None:
        """The app has its own pool of connections."""


def _function(task: Any) -> Any:
    """The function of a task, unless the task says that its arguments must not be checked."""
    return task.run if task is not None and task.typing else None


def make_adapter(app: Celery) -> CeleryAdapter:
    return CeleryAdapter(app)
