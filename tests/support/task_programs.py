"""One task for each library of task queues, as a user's program has it. It appends its id and arguments to a file.

Each function imports its own library, so that a process does not load all of them.
"""

import json
import os
from pathlib import Path
from typing import Any

RECORD = "TASK_RECORD"
"""The environment variable with the path of the file."""


def append(task_id: str, invoice: str, amount: int) -> None:
    with Path(os.environ[RECORD]).open("a") as file:
        file.write(json.dumps([task_id, invoice, amount]) + "\n")


def make_celery(url: str) -> tuple[Any, Any]:
    from celery import Celery

    app = Celery("shop", broker=url)
    app.conf.broker_connection_retry_on_startup = True

    @app.task(bind=True, name="shop.send_receipt", shared=False)  # type: ignore[untyped-decorator]
    def send_receipt(self: Any, invoice: str, amount: int) -> None:
        append(self.request.id, invoice, amount)

    return app, send_receipt


def make_dramatiq(url: str) -> tuple[Any, Any]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware import CurrentMessage

    broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
    broker.add_middleware(CurrentMessage())

    @dramatiq.actor(broker=broker, actor_name="send_receipt")
    def send_receipt(invoice: str, amount: int) -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        append(message.message_id, invoice, amount)

    return broker, send_receipt


def rq_send_receipt(invoice: str, amount: int) -> None:
    from rq import get_current_job

    job = get_current_job()
    assert job is not None
    append(job.id, invoice, amount)


def make_rq(url: str) -> tuple[Any, Any]:
    from redis import Redis
    from rq import Queue

    return Queue("receipts", connection=Redis.from_url(url)), rq_send_receipt


async def arq_send_receipt(ctx: dict[str, Any], invoice: str, amount: int) -> None:
    append(ctx["job_id"], invoice, amount)


def make_arq(url: str) -> tuple[Any, Any]:
    from arq.connections import RedisSettings

    settings = RedisSettings.from_dsn(url)
    settings.conn_retries = 0
    return settings, arq_send_receipt


def make_taskiq(url: str) -> tuple[Any, Any]:
    from taskiq import Context, TaskiqDepends
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(url)

    @broker.task(task_name="send_receipt")
    async def send_receipt(invoice: str, amount: int, context: Context = TaskiqDepends()) -> None:  # noqa: B008  # as Taskiq documents it
        append(context.message.task_id, invoice, amount)

    return broker, send_receipt
