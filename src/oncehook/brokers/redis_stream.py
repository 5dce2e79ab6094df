"""Redis streams: a message is an entry, and the ID in XADD's reply is its acknowledgement.

The reply says that the entry is in the server's memory. Whether it survives a crash of the server depends on its
settings: with `appendonly yes` and `appendfsync always` it is on disk before the reply, with `everysec` the last second
can be lost, and without an append-only file everything since the last snapshot. Redis does not deduplicate entries: the
field `key` is the same in each copy of a message.
"""

import json

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import SendFailed

CONNECT_SECONDS = 5.0
UNHEALTHY = (ReadOnlyError, OutOfMemoryError, BusyLoadingError)
"""Replies of a server that currently accepts no writes to any stream."""


class RedisPublisher:
    """Appends entries with the fields `key`, `headers` (JSON) and `body`."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        (host, port), *_ = address.hosts
        self._client = Redis(
            host=host,
            port=port,
            db=int(address.path[0]),
            username=address.user,
            password=address.password,
            ssl=address.secure,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=None,  # the caller has a limit
            retry=Retry(NoBackoff(), 0),  # a retry is a second entry; the caller counts attempts
            client_name="oncehook",
        )

    async def open(self) -> None:
        try:
            await self._client.ping()
        except (RedisError, OSError) as error:
            raise SendFailed(f"{self.address.origin} cannot be reached: {type(error).__name__}") from None

    async def publish(self, address: BrokerAddress, message: Message) -> None:
        """Return after the reply to XADD. With the option `maxlen`, old entries are trimmed, read or not."""
        fields: dict[str | bytes, str | bytes] = {
            "key": message.key,
            "headers": json.dumps(dict(message.headers)),
            "body": message.body,
        }
        maxlen = address.options.get("maxlen")
        try:
            await self._client.xadd(
                address.name,
                fields,  # type: ignore[arg-type]  # a dict of this type is one of its accepted types
                maxlen=int(maxlen) if maxlen else None,
            )
        except UNHEALTHY as error:
            raise SendFailed(f"{self.address.origin} does not accept writes: {type(error).__name__}") from None
        except ResponseError as error:
            code = str(error).partition(" ")[0][:40]
            raise NotStored(f"{self.address.origin} did not store the message: {code}") from None
        except (RedisError, OSError) as error:
            raise SendFailed(f"{self.address.origin} did not acknowledge the message: {type(error).__name__}") from None

    async def close(self) -> None:
        await self._client.aclose()


def make_publisher(address: BrokerAddress) -> RedisPublisher:
    return RedisPublisher(address)
