"""RQ: functions in a Redis queue. RQ refuses a job whose id exists, until the job and its result have expired."""

import inspect

from rq import Queue
from rq.exceptions import DuplicateJobError

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import Task, TaskMessage


class RqAdapter:
    """Hands over jobs to one queue, with the queue's own timeout."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def check(self) -> None:
        if "unique" not in inspect.signature(Queue.enqueue_call).parameters:
            raise ConfigurationError("inbox.tasks(…) needs rq 2.8 or later, which refuses a job whose id exists")

    def find(self, task: object) -> Task | None:
        if isinstance(task, str):
            return Task(task)
        if not inspect.isfunction(task):
            return None
        if task.__module__ == "__main__" or "<locals>" in task.__qualname__:
            return None  # a worker could not import it
        return Task(f"{task.__module__}.{task.__qualname__}", task)

    def send(self, message: TaskMessage) -> None:
        try:
            self.queue.enqueue_call(
                message.name, args=tuple(message.args), kwargs=message.kwargs, job_id=message.key, unique=True
            )
        except DuplicateJobError:
            return

    async def close(self) -> None:
        """Do nothing: the connection of the queue belongs to the user's program."""


def make_adapter(queue: Queue) -> RqAdapter:
    return RqAdapter(queue)
