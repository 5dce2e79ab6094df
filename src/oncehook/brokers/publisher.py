"""Publishing to a broker: one small protocol, and the choice of its implementation by the kind of an address.

A publisher returns only after the broker has acknowledged the message. Each implementation says what that
acknowledgement means. The client library of a broker is imported when its first publisher is made.

    OncehookError
    ├── NotStored             the broker answered, and did not store the message
    └── SendFailed            no acknowledgement: the message may or may not be stored
        └── SendRefused       nothing was sent, and no later attempt can succeed: the message is too large
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from oncehook.brokers.address import BrokerAddress, check_client
from oncehook.model.errors import OncehookError

CLIENTS = {
    "sqs": ("aiobotocore", "aws"),
    "nats": ("nats", "nats"),
    "kafka": ("confluent_kafka", "kafka"),
    "redis": ("redis", "redis"),
    "rabbitmq": ("aio_pika", "rabbitmq"),
}
"""The client library of each kind of broker, and the extra that installs it."""

MODULES = {
    "sqs": "sqs_publisher",
    "nats": "nats",
    "kafka": "kafka",
    "redis": "redis_stream",
    "rabbitmq": "rabbitmq",
}


class NotStored(OncehookError):
    """The broker answered, and did not store the message, for example because the queue does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to publish. `key` is the same at every attempt; a broker that deduplicates does so by the key."""

    key: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    group: str | None = None  # messages of one group keep their order where the broker has ordered groups


class Publisher(Protocol):
    """A connection to one broker, which several tasks share."""

    async def open(self) -> None:
        """Connect. Raises SendFailed."""

    async def publish(self, address: BrokerAddress, message: Message) -> None:
        """Send a message to a queue of this broker, and return after its acknowledgement.

        Raises SendFailed, SendRefused or NotStored. Their text names the broker's origin, never credentials or content.
        """

    async def close(self) -> None:
        """Disconnect. It does not wait for messages without an acknowledgement."""


def check_broker(address: BrokerAddress, where: str) -> None:
    """Raise ConfigurationError if the client library for an address is not installed."""
    module, extra = CLIENTS[address.kind]
    check_client(module, extra, where)


def make_publisher(address: BrokerAddress) -> Publisher:
    """Make the publisher of an address. Raises ConfigurationError if its client library is not installed."""
    check_broker(address, address.origin)
    module = import_module(f"oncehook.brokers.{MODULES[address.kind]}")
    return cast(Publisher, module.make_publisher(address))
