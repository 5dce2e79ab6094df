"""Queues of NATS and of the mock of Kafka, for the suite that every broker of an intake runs."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import nats
from confluent_kafka import Consumer, Producer, TopicPartition

from oncehook.intake.broker import Broker, Message
from tests.support.broker_servers import PASSWORD, KafkaMock, NatsServer
from tests.support.proxy import Proxy, proxied
from tests.support.waiting import eventually


class NatsIntake:
    """A subject of a work queue stream, a stream for rejected messages, and a proxy in front of the server."""

    def __init__(self, server: NatsServer, proxy: Proxy, name: str, intake: str) -> None:
        self.environment: dict[str, str] = {}
        self.server = server
        self.proxy = proxy
        self.name = name
        self.intake = intake

    @asynccontextmanager
    async def context(self) -> AsyncIterator[Any]:
        client = await nats.connect(self.server.origin, user=self.server.user, password=PASSWORD)
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def create(self) -> None:
        async with self.context() as context:
            await context.add_stream(name=self.name, subjects=[self.name], retention="workqueue")
            await context.add_stream(name=f"{self.name}-rejected", subjects=[f"{self.name}.rejected"])

    async def put(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        async with self.context() as context:
            await context.publish(self.name, body, headers=dict(headers or {}))

    async def messages(self) -> int:
        return await self._count(self.name)

    async def dead(self) -> int:
        return await self._count(f"{self.name}-rejected")

    async def _count(self, stream: str) -> int:
        async with self.context() as context:
            count: int = (await context.stream_info(stream)).state.messages
            return count

    async def cut(self) -> None:
        self.proxy.refuse()

    async def heal(self) -> None:
        self.proxy.accept()


@asynccontextmanager
async def nats_intake(server: NatsServer) -> AsyncIterator[NatsIntake]:
    name = f"orders-{secrets.token_hex(4)}"
    async with proxied(server.address(name)) as (proxy, address):
        queue = NatsIntake(server, proxy, name, address)
        await queue.create()
        yield queue


class KafkaIntake:
    """A topic of the mock cluster. The mock advertises its own ports, so the link is cut by pausing the mock."""

    def __init__(self, server: KafkaMock) -> None:
        self.environment: dict[str, str] = {}
        self.server = server
        self.name = f"orders-{secrets.token_hex(4)}"
        self.intake = f"{server.address(self.name)}?group={self.name}"
        self._producer = Producer({"bootstrap.servers": server.brokers})
        self._is_cut = False
        for topic in (self.name, f"{self.name}.rejected"):  # the mock makes a topic that a producer asks for
            self._producer.list_topics(topic, timeout=10)

    async def put(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._producer.produce(
            self.name, body, headers=[(name, value.encode()) for name, value in (headers or {}).items()]
        )
        if not self._is_cut:
            await asyncio.to_thread(self._producer.flush, 10)

    async def messages(self) -> int:
        return await asyncio.to_thread(self._count, self.name, self.name)

    async def dead(self) -> int:
        return await asyncio.to_thread(self._count, f"{self.name}.rejected", "nobody")

    def _count(self, topic: str, group: str) -> int:
        consumer = Consumer({"bootstrap.servers": self.server.brokers, "group.id": group, "log_level": 0})
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        count = 0
        for committed in consumer.committed([TopicPartition(topic, number) for number in partitions], timeout=10):
            low, high = consumer.get_watermark_offsets(committed, timeout=10)
            count += high - max(low, committed.offset)
        consumer.close()
        return count

    async def cut(self) -> None:
        self._is_cut = True
        self.server.pause()

    async def heal(self) -> None:
        self._is_cut = False
        self.server.go_on()
        await asyncio.to_thread(self._producer.flush, 10)


@asynccontextmanager
async def kafka_intake(server: KafkaMock) -> AsyncIterator[KafkaIntake]:
    yield KafkaIntake(server)


async def receive_messages(broker: Broker, count: int) -> list[Message]:
    """Receive until there are `count` messages. A consumer of Kafka gets none until its group is complete."""
    messages: list[Message] = []

    async def are_received() -> bool:
        messages.extend(await broker.receive())
        return len(messages) >= count

    await eventually(are_received, f"{count} messages are received")
    return messages
