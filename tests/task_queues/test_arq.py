"""arq: coroutine functions by their names, in the queue that an option names."""

import pytest
from arq.connections import RedisSettings

from oncehook.task_queues.adapter import TaskMessage
from oncehook.task_queues.arq import make_adapter
from tests.support.redis_server import private_redis

pytestmark = [pytest.mark.anyio, pytest.mark.system]


async def send(ctx: object, invoice: str) -> None: ...


def test_coroutine_function_is_a_task_without_its_context() -> None:
    adapter = make_adapter(RedisSettings())
    found = adapter.find(send)
    assert found is not None and found.name == "send"
    assert found.problem_with(("in_1",), {}) is None
    assert found.problem_with((), {}) == "missing a required argument: 'invoice'"
    assert adapter.find(print) is None
    adapter.check()


async def test_job_is_in_the_queue_that_an_option_names() -> None:
    with private_redis() as server:
        adapter = make_adapter(RedisSettings.from_dsn(server.url), default_queue_name="mail")
        for _ in range(2):
            await adapter.send(TaskMessage(name="send", key="k" * 40, args=["in_1"], kwargs={}, seconds=1))
        await adapter.close()
        with server.client as redis:
            assert redis.zrange("mail", 0, -1) == [b"k" * 40]
