"""RabbitMQ: exchanges, unroutable messages, full queues, and headers that RabbitMQ routes by."""

from typing import Any

import aio_pika
import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, NotStored
from tests.support.broker_servers import PASSWORD
from tests.support.brokers import MakeQueue

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.xdist_group("brokers")]


async def test_message_goes_through_an_exchange_and_an_unroutable_one_is_not_stored(
    make_queue: MakeQueue, publishers: Publishers
) -> None:
    queue = await make_queue("rabbitmq")
    async with await aio_pika.connect(port=queue.server.port, login="app", password=PASSWORD) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("events", "topic", durable=True)
        await (await channel.get_queue(queue.name)).bind(exchange, "orders.*")
    created = parse_broker(queue.server.address("orders.created?exchange=events"))
    await publishers.publish(created, Message(key="routed", body=b"{}"), timeout=10)
    other = parse_broker(queue.server.address("invoices.paid?exchange=events"))
    with pytest.raises(NotStored, match="it was returned"):
        await publishers.publish(other, Message(key="lost", body=b"{}"), timeout=10)
    assert [arrived.key for arrived in await queue.messages()] == ["routed"]


async def test_exchange_that_does_not_exist_closes_only_the_channel(
    make_queue: MakeQueue, publishers: Publishers
) -> None:
    queue = await make_queue("rabbitmq")
    missing = parse_broker(queue.server.address("orders?exchange=missing"))
    for _ in range(2):
        with pytest.raises(NotStored):
            await publishers.publish(missing, Message(key="lost", body=b"{}"), timeout=10)
        await publishers.publish(parse_broker(queue.address()), Message(key="next", body=b"{}"), timeout=10)
    assert [arrived.key for arrived in await queue.messages()] == ["next", "next"]
    assert len(publishers._connections) == 1


async def test_full_queue_rejects_the_message(make_queue: MakeQueue, publishers: Publishers) -> None:
    queue = await make_queue("rabbitmq")
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with await aio_pika.connect(port=queue.server.port, login="app", password=PASSWORD) as connection:
        channel = await connection.channel()
        full = await channel.declare_queue(f"{queue.name}-full", durable=True, arguments=arguments)
    address = parse_broker(queue.server.address(full.name))
    await publishers.publish(address, Message(key="first", body=b"{}"), timeout=10)
    with pytest.raises(NotStored, match="rejected the message"):
        await publishers.publish(address, Message(key="second", body=b"{}"), timeout=10)


async def test_header_of_a_delivery_cannot_route_a_copy_elsewhere(
    make_queue: MakeQueue, publishers: Publishers
) -> None:
    queue, other = await make_queue("rabbitmq"), await make_queue("rabbitmq")
    message = Message(key="routed", body=b"{}", headers={"CC": other.name, "bcc": other.name, "x-delay": "1"})
    await publishers.publish(parse_broker(queue.address()), message, timeout=10)
    (arrived,) = await queue.messages()
    assert not {"cc", "bcc", "x-delay"} & set(arrived.headers)
    assert await other.messages() == []
