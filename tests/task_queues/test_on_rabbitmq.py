"""Celery and Dramatiq on RabbitMQ: many tasks of short-lived requests use few connections."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pika
import pytest
from celery import Celery
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from oncehook.effects.effect import Effect, EffectRegistry
from oncehook.effects.tasks import TaskQueue, add_task_queue
from tests.support.broker_servers import PASSWORD, RabbitServer

pytestmark = [pytest.mark.anyio, pytest.mark.rest, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RabbitServer(Path(tmp_path_factory.mktemp("rabbit")))
    with server.running():
        yield f"amqp://{server.user}:{PASSWORD}@127.0.0.1:{server.port}"


def make_celery(url: str) -> Any:
    app = Celery("shop", broker=f"{url}//", set_as_current=False)
    app.conf.broker_transport_options = {"confirm_publish": True}
    return app


def make_dramatiq(url: str) -> Any:
    broker = RabbitmqBroker(url=url, confirm_delivery=True)
    dramatiq.actor(broker=broker, actor_name="shop.send", queue_name="dramatiq")(lambda number: None)
    return broker


@pytest.mark.parametrize(("make", "name"), [(make_celery, "celery"), (make_dramatiq, "dramatiq")])
async def test_hundred_tasks_are_stored_over_few_connections(url: str, make: Any, name: str) -> None:
    effects = EffectRegistry()
    made = make(url)
    queue = add_task_queue(effects, made, name=None, retry=None, seconds=30.0, options={})
    queue.adapter.check()
    for start in range(0, 100, 4):
        await asyncio.gather(*(hand_over(queue, number) for number in range(start, start + 4)))
    if isinstance(made, RabbitmqBroker):
        assert len(made.connections) <= 4
    parameters = pika.URLParameters(f"{url}/%2F")
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        assert channel.queue_purge(name).method.message_count == 100
    await queue.close()


async def hand_over(queue: TaskQueue, number: int) -> None:
    effect = Effect(
        id=number,
        key=f"key-{number}",
        idempotency_key=f"{number:040}",
        target=f"{queue.name}:shop.send",
        source="stripe",
        receipt=1,
        attempt=1,
    )
    await queue.hand_over(effect, args=[number], kwargs={})
