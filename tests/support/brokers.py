"""Queues of private brokers: their address, and the messages that arrived, read with another client."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aio_pika
import nats
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from redis.asyncio import Redis

from tests.support.aws import Moto
from tests.support.broker_servers import PASSWORD, KafkaMock, NatsServer, RabbitServer, RedisServer, Server


@dataclass(frozen=True)
class Arrived:
    """A message as a consumer of the broker reads it."""

    key: str
    body: bytes
    headers: dict[str, str]


class Queue:
    """A queue, stream or topic for one test."""

    kind = ""
    deduplicates = False
    server: Server

    def __init__(self, server: Any) -> None:
        self.server = server
        self.name = f"orders-{secrets.token_hex(4)}"

    @property
    def path(self) -> str:
        return self.name

    @property
    def missing(self) -> str | None:
        """The address of a queue that does not exist, if the broker minds."""
        return self.server.address("missing")

    def address(self, port: int | None = None) -> str:
        return self.server.address(self.path, port)

    @property
    def bare(self) -> str:
        """The address without credentials."""
        return f"{self.server.origin}/{self.path}"

    async def create(self) -> None:
        """Make the queue."""

    async def messages(self) -> list[Arrived]:
        """All messages, in order."""
        raise NotImplementedError


class NatsQueue(Queue):
    kind = "nats"
    deduplicates = True
    server: NatsServer

    async def _client(self) -> Any:
        return await nats.connect(self.server.origin, user=self.server.user, password=PASSWORD)

    async def create(self) -> None:
        client = await self._client()
        await client.jetstream().add_stream(name=self.name, subjects=[self.name, f"{self.name}.>"])
        await client.close()

    async def messages(self) -> list[Arrived]:
        client = await self._client()
        try:
            stream = client.jetstream()
            state = (await stream.stream_info(self.name)).state
            rows = [await stream.get_msg(self.name, seq + 1) for seq in range(state.last_seq)]
        finally:
            await client.close()
        return [Arrived(row.headers["Nats-Msg-Id"], row.data, _lower(row.headers)) for row in rows]


class RedisQueue(Queue):
    kind = "redis"
    server: RedisServer

    @property
    def path(self) -> str:
        return f"0/{self.name}"

    @property
    def missing(self) -> str | None:
        return None  # XADD makes the stream

    def client(self) -> Any:
        return Redis(port=self.server.port, password=PASSWORD)

    async def messages(self) -> list[Arrived]:
        client = self.client()
        rows = await client.xrange(self.name)
        await client.aclose()
        return [Arrived(row[b"key"].decode(), row[b"body"], _lower(json.loads(row[b"headers"]))) for _, row in rows]


class RabbitQueue(Queue):
    kind = "rabbitmq"
    server: RabbitServer
    type = "quorum"

    async def _connect(self) -> Any:
        return await aio_pika.connect(host="127.0.0.1", port=self.server.port, login="app", password=PASSWORD)

    async def create(self) -> None:
        async with await self._connect() as connection:
            channel = await connection.channel()
            await channel.declare_queue(self.name, durable=True, arguments={"x-queue-type": self.type})

    async def messages(self) -> list[Arrived]:
        """Take the messages from the queue, and put them back by closing the connection."""
        arrived = []
        async with await self._connect() as connection:
            queue = await (await connection.channel()).get_queue(self.name)
            while row := await queue.get(no_ack=False, fail=False):
                arrived.append(Arrived(row.message_id or "", row.body, _lower(row.headers)))
        return arrived


class ClassicRabbitQueue(RabbitQueue):
    type = "classic"


class KafkaQueue(Queue):
    kind = "kafka"
    server: KafkaMock

    @property
    def missing(self) -> str | None:
        return None  # the mock makes the topic

    async def messages(self) -> list[Arrived]:
        return await asyncio.to_thread(self._messages)

    def _messages(self) -> list[Arrived]:
        consumer = Consumer(
            {"bootstrap.servers": self.server.brokers, "group.id": "test", "enable.partition.eof": True}
        )
        partitions = consumer.list_topics(self.name, timeout=10).topics[self.name].partitions
        consumer.assign([TopicPartition(self.name, number, OFFSET_BEGINNING) for number in partitions])
        arrived, ended = [], 0
        while ended < len(partitions):
            for row in consumer.consume(500, timeout=0.1):
                if row.error() is not None:
                    ended += 1
                else:
                    headers: Any = row.headers()
                    key, value = bytes(row.key() or b""), bytes(row.value() or b"")
                    arrived.append(Arrived(key.decode(), value, _lower({n: v.decode() for n, v in headers or []})))
        consumer.close()
        return arrived


class SqsQueue(Queue):
    kind = "sqs"
    deduplicates = True

    def __init__(self, moto: Moto) -> None:
        self.moto = moto
        self.name = ""
        self.url = moto.queue(".fifo")

    @property
    def bare(self) -> str:
        return f"sqs:{self.url}"

    @property
    def missing(self) -> str | None:
        return f"sqs:{self.moto.url}/123456789012/missing.fifo"

    def address(self, port: int | None = None) -> str:
        return f"sqs:{self.url}"

    async def messages(self) -> list[Arrived]:
        found = await asyncio.to_thread(
            self.moto.call,
            "sqs",
            "ReceiveMessage",
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            VisibilityTimeout=0,
            MessageAttributeNames=["All"],
        )
        return [self._arrived(row) for row in found.get("Messages", [])]

    @staticmethod
    def _arrived(row: dict[str, Any]) -> Arrived:
        attributes = {name: value["StringValue"] for name, value in row["MessageAttributes"].items()}
        return Arrived(attributes["Idempotency-Key"], row["Body"].encode(), _lower(json.loads(attributes["Headers"])))


MakeQueue = Callable[[str], Awaitable[Queue]]
"""Makes a queue of a kind of broker."""


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in (headers or {}).items()}
