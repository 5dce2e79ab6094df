"""RabbitMQ: a message is acknowledged by the publisher confirm of the queues that it was routed to.

A quorum queue confirms when a majority of its replicas has written the message to disk; a durable classic queue, when
its only copy is on disk. Messages are persistent and `mandatory`: RabbitMQ returns a message that it cannot route, and
it counts as not stored. RabbitMQ does not deduplicate: `message_id` is the same in each copy of a message.
"""

import asyncio
import logging
import ssl

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelClosed, DeliveryError, PublishError

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import SendFailed

CONNECT_SECONDS = 5.0
RESERVED = frozenset({"cc", "bcc", "x-delay"})
"""Headers that RabbitMQ routes by. A delivery's headers must not set them."""


_log = logging.getLogger("aiormq.connection")
if _log.level == logging.NOTSET:
    _log.setLevel(logging.CRITICAL)  # its debug lines contain the password; callers get their own errors


class RabbitPublisher:
    """Publishes over one channel with publisher confirms."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        (host, port), *_ = self.address.hosts
        try:
            self._connection = await aio_pika.connect(
                host=host,
                port=port,
                login=self.address.user or "guest",
                password=self.address.password or "guest",
                virtualhost=self.address.vhost or "/",
                ssl=self.address.secure,
                ssl_context=ssl.create_default_context() if self.address.secure else None,
                timeout=CONNECT_SECONDS,
                client_properties={"connection_name": "oncehook"},
            )
        except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
            raise SendFailed(f"{self.address.origin} cannot be reached: {type(error).__name__}") from None

    async def publish(self, address: BrokerAddress, message: Message) -> None:
        """Return after the publisher confirm. A message that is returned or rejected raises NotStored."""
        origin = self.address.origin
        outgoing = aio_pika.Message(
            message.body,
            message_id=message.key,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            content_type=message.headers.get("content-type"),
            headers={name: value for name, value in message.headers.items() if name.lower() not in RESERVED},
        )
        try:
            channel = await self._open_channel()
            exchange = await _exchange(channel, address.options.get("exchange"))
            await exchange.publish(outgoing, address.name, mandatory=True)
        except PublishError:
            raise NotStored(f"{origin} has no queue for the message: it was returned") from None
        except DeliveryError:
            raise NotStored(f"{origin} rejected the message: a queue is full or unavailable") from None
        except ChannelClosed as error:
            raise NotStored(f"{origin} closed the channel: {type(error).__name__}") from None
        except (*CONNECTION_EXCEPTIONS, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not self._is_lost:
                raise
            raise SendFailed(f"{origin} did not acknowledge the message: {type(error).__name__}") from None

    @property
    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.is_closed

    async def _open_channel(self) -> AbstractChannel:
        """The open channel. RabbitMQ closes one after an error, such as an exchange that does not exist."""
        async with self._opening:
            if self._connection is None:
                raise ConnectionError
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            return self._channel

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _exchange(channel: AbstractChannel, name: str | None) -> aio_pika.abc.AbstractExchange:
    return channel.default_exchange if name is None else await channel.get_exchange(name, ensure=False)


def make_publisher(address: BrokerAddress) -> RabbitPublisher:
    return RabbitPublisher(address)
