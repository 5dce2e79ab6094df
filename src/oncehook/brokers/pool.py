"""The connections of this process to brokers, one for each origin and user, opened when they are first used.

After a failure the connection is not used for further messages: it may be half open. Messages that are under way on it
finish first, and then it is closed. The next message opens a new connection.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.publisher import Message, NotStored, Publisher, make_publisher
from oncehook.model.errors import SendFailed, SendRefused


@dataclass(slots=True, eq=False)
class _Connection:
    publisher: Publisher
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_open: bool = False
    is_retired: bool = False
    users: int = 0


class Publishers:
    """Publishes to any broker. An inbox may be started again in another event loop: connections belong to one loop."""

    def __init__(self) -> None:
        self._connections: dict[tuple[object, ...], _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, address: BrokerAddress, message: Message, *, timeout: float) -> None:  # noqa: ASYNC109  # errors name this limit
        """Publish a message and return after the broker's acknowledgement, or raise within `timeout` seconds.

        Raises SendFailed without an acknowledgement, SendRefused if the message cannot be sent, and NotStored if the
        broker rejected it.
        """
        key = (asyncio.get_running_loop(), address.origin, address.user, address.password, address.vhost)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = _Connection(make_publisher(address))
        connection.users += 1
        try:
            async with asyncio.timeout(timeout):
                await self._open(connection)
                await connection.publisher.publish(address, message)
        except (NotStored, SendRefused):
            raise
        except BaseException as error:
            self._retire(key, connection)
            if isinstance(error, TimeoutError):
                problem = f"{address.origin} did not acknowledge the message within {timeout:g} s"
                raise SendFailed(problem) from None
            raise
        finally:
            connection.users -= 1
            if connection.is_retired and not connection.users:
                self._close(connection)

    async def close(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            self._close(connection)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _open(self, connection: _Connection) -> None:
        async with connection.opening:
            if not connection.is_open:
                await connection.publisher.open()
                connection.is_open = True

    def _retire(self, key: tuple[object, ...], connection: _Connection) -> None:
        connection.is_retired = True
        if self._connections.get(key) is connection:
            del self._connections[key]

    def _close(self, connection: _Connection) -> None:
        task = asyncio.create_task(_close_quietly(connection.publisher))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


CLOSE_SECONDS = 2.0
"""How long a connection may take to close. A broker that does not answer must not delay a stop."""


async def _close_quietly(publisher: Publisher) -> None:
    with suppress(Exception):  # the connection is not used again, whatever happens to it
        async with asyncio.timeout(CLOSE_SECONDS):
            await publisher.close()
