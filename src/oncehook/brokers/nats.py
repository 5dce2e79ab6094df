"""NATS JetStream: a message is acknowledged by the stream that captures its subject.

The acknowledgement (PubAck) says that the stream's leader, and with replicas a majority, has the message. Whether it is
on disk depends on the server: by default it runs fsync every two minutes (`sync_interval`). `Nats-Msg-Id` is the
message's key: the stream drops a second message with that key within its duplicate window (two minutes by default).
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from nats.aio.client import Client
from nats.errors import Error, MaxPayloadError
from nats.js.errors import APIError, NoStreamResponseError

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import SendFailed, SendRefused

CONNECT_SECONDS = 5
CLOSE_SECONDS = 1.0
HEADER_LINE = len("NATS/1.0\r\n\r\n")
RESERVED = ("nats-", "status", "description")
"""Beginnings of header names that the server or its clients interpret. A delivery's headers must not set them."""


Callback = Callable[[], Awaitable[None]]


async def connect(address: BrokerAddress, *, lost: Callback | None = None, reconnect: bool = False) -> Client:
    """Connect to the servers of an address, and call `lost` when the connection is lost. Raises SendFailed."""
    secure = ssl.create_default_context() if address.secure else None
    client = Client()
    try:
        await client.connect(
            [f"{'tls' if secure else 'nats'}://{server}" for server in address.servers],
            user=address.user if address.password is not None else None,
            password=address.password,
            token=address.user if address.password is None else None,
            tls=secure,
            name="oncehook",
            allow_reconnect=reconnect,
            max_reconnect_attempts=-1 if reconnect else 1,
            reconnect_time_wait=1 if reconnect else 0,
            connect_timeout=CONNECT_SECONDS,
            error_cb=_ignore,
            disconnected_cb=lost,
        )
    except BaseException as error:
        await close(client)
        if isinstance(error, (Error, OSError, ValueError)):
            raise SendFailed(f"{address.origin} cannot be reached: {type(error).__name__}") from None
        raise
    return client


async def close(client: Client) -> None:
    """Close a connection within a second. The library leaves the socket open if it could not connect."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()
    finally:
        if client._transport is not None:
            client._transport.close()  # type: ignore[no-untyped-call]  # the library has few types


async def _ignore(error: Exception) -> None:
    """Ignore an error that the library reports: the caller of the failed operation gets an error too."""


def sendable_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without those that have a meaning for the server, such as `Nats-Rollup`, which deletes messages."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(RESERVED)}


class NatsPublisher:
    """Publishes to JetStream over one connection. After a lost connection it must be opened again."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self._client: Client | None = None
        self._lost = asyncio.Event()  # the library lets a request wait for its reply after the connection is lost

    async def open(self) -> None:
        self._client = await connect(self.address, lost=self._set_lost)

    async def _set_lost(self) -> None:
        self._lost.set()

    async def publish(self, address: BrokerAddress, message: Message) -> None:
        """Return after the PubAck of the stream, also if it is of an earlier message with the same key."""
        client = self._client
        if client is None or not client.is_connected:
            raise SendFailed(f"the connection to {self.address.origin} was lost")
        headers = {**sendable_headers(message.headers), "Nats-Msg-Id": message.key}
        self._check_size(client, message, headers)
        publishing = asyncio.ensure_future(self._request(client, address.name, message.body, headers))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((publishing, lost), return_when=asyncio.FIRST_COMPLETED)
            if not publishing.done():
                raise SendFailed(f"the connection to {self.address.origin} was lost before the acknowledgement")
            await publishing
        finally:
            publishing.cancel()
            lost.cancel()

    async def _request(self, client: Client, subject: str, body: bytes, headers: dict[str, str]) -> None:
        origin = self.address.origin
        try:
            ack = await client.jetstream(timeout=3600).publish(subject, body, headers=headers)  # the caller has a limit
        except NoStreamResponseError:
            raise NotStored(f"no stream of {origin} captures the subject") from None
        except MaxPayloadError:
            raise SendRefused(f"the message is larger than {origin} accepts") from None
        except APIError as error:
            raise NotStored(f"{origin} did not store the message: error {error.err_code or error.code}") from None
        except (Error, OSError) as error:
            raise SendFailed(f"{origin} did not acknowledge the message: {type(error).__name__}") from None
        except (ValueError, TypeError, AttributeError):  # a subscriber answered, not a stream
            raise NotStored(f"{origin} answered without the acknowledgement of a stream") from None
        if not ack.stream or not ack.seq:
            raise NotStored(f"{origin} answered without the acknowledgement of a stream")

    def _check_size(self, client: Client, message: Message, headers: Mapping[str, str]) -> None:
        """The server counts headers too, and cuts the connection of a client that sends more than the limit."""
        lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
        size = len(message.body) + lines + HEADER_LINE
        if size > client.max_payload:
            raise SendRefused(
                f"the message has {size:,} bytes, and {self.address.origin} accepts {client.max_payload:,}"
            )

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await close(client)


def make_publisher(address: BrokerAddress) -> NatsPublisher:
    return NatsPublisher(address)
