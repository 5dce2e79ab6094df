"""arq: functions of a worker, by name. arq refuses a job whose id exists, until its result has expired."""

import inspect
from functools import partial
from typing import Any

from arq.connections import ArqRedis, RedisSettings, create_pool

from oncehook.task_queues.adapter import Task, TaskMessage
from oncehook.task_queues.loop_client import LoopClient


class ArqAdapter:
    """Hands over jobs to a Redis. Options are those of arq's `create_pool`, such as `default_queue_name`."""

    def __init__(self, settings: RedisSettings, options: dict[str, Any]) -> None:
        self._redis: LoopClient[ArqRedis] = LoopClient(lambda: create_pool(settings, **options), _close)

    def check(self) -> None:
        """arq always waits for the answer of Redis."""

    def find(self, task: object) -> Task | None:
        if isinstance(task, str):
            return Task(task)
        if not inspect.iscoroutinefunction(task):
            return None
        return Task(task.__qualname__, partial(task, None))  # the worker passes its context first

    async def send(self, message: TaskMessage) -> None:
        redis = await self._redis.get()
        await redis.enqueue_job(message.name, *message.args, _job_id=message.key, **message.kwargs)

    async def close(self) -> None:
        await self._redis.close()


async def _close(redis: ArqRedis) -> None:
    await redis.aclose()


def make_adapter(
    settings: RedisSettings,
    *,
    default_queue_name: str = "arq:queue",
    job_serializer: Any = None,
    job_deserializer: Any = None,
) -> ArqAdapter:
    options = {
        "default_queue_name": default_queue_name,
        "job_serializer": job_serializer,
        "job_deserializer": job_deserializer,
    }
    return ArqAdapter(settings, options)
