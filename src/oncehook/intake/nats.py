"""NATS JetStream as the broker of an intake: publish acknowledgements, and a durable pull consumer with explicit acks.

The stream is yours. The consumer is `oncehook-SOURCE`, which every process of the source shares: the server delivers a
message to one of them, and again after ACK_SECONDS without an ack. A rejected message is published to SUBJECT.rejected
if a stream captures that. Otherwise it stays in its stream.

The server acknowledges a publish before fsync, unless its `sync_interval` is `always`. A client cannot read that
setting: an address with `?sync=always` says that it is set.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.nats import close, connect
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message as Outgoing
from oncehook.brokers.publisher import NotStored
from oncehook.intake.broker import Message, QueueStatus
from oncehook.intake.formats import header_pairs
from oncehook.model.errors import BrokerUnavailable, ConfigurationError, SendFailed

ACK_SECONDS = 30.0
"""After how many seconds without an ack the server delivers a message again."""

MAX_ACK_PENDING = 1000
"""How many messages the server delivers before it waits for acks, for all processes together."""

CALL_SECONDS = 5.0
WAIT_SECONDS = 5.0
"""For how long a `receive` waits for a message."""

BRIEFLY = 0.05
REJECTED_SECONDS = 3600
"""After how many seconds a rejected message is delivered again, if nothing else keeps it."""

DEFAULT_SIZE = 1024 * 1024
HEADER_BYTES = 512
"""Room for the headers of a published message."""


@dataclass(frozen=True, slots=True)
class _Session:
    """A connection, with the stream of the subject and the subscription to the durable consumer."""

    client: Client
    stream: str
    keeps_rejected: bool  # the stream keeps messages that consumers are done with
    subscription: JetStreamContext.PullSubscription


class NatsBroker:
    """Implements `Broker` on one subject of JetStream."""

    parallel = 1
    batch = 100
    extend_every = ACK_SECONDS / 3

    def __init__(self, address: BrokerAddress, source: str) -> None:
        self._where = f"sources.{source}.intake"
        if any(token in ("", "*", ">") for token in address.name.split(".")):
            raise ConfigurationError(f"{self._where} must name one subject, without * and >")
        self.name = f"nats:{address.name}"
        self.max_message = DEFAULT_SIZE - HEADER_BYTES
        self._address = address
        self._durable = f"oncehook-{source}"
        self._publishers = Publishers()
        self._session: _Session | None = None
        self._opening = asyncio.Lock()

    async def start(self) -> None:
        self._address = self._address.resolve_password(self._where)
        await self._open()

    async def stop(self) -> None:
        session, self._session = self._session, None
        await self._publishers.close()
        if session is not None:
            async with self._calls():
                await close(session.client)

    async def publish(self, body: bytes, message_id: str) -> None:
        await self._send(self._address, Outgoing(key=message_id, body=body))

    async def receive(self, *, wait: bool = True) -> list[Message]:
        seconds = WAIT_SECONDS if wait else BRIEFLY
        async with self._calls(seconds + CALL_SECONDS):
            session = await self._open()
            try:
                messages = await session.subscription.fetch(self.batch, timeout=seconds)
            except NatsTimeout:
                if not session.client.is_connected:
                    raise
                return []
            except asyncio.CancelledError:
                # The server still has the request, and would deliver a released message to it, which no one reads.
                await session.subscription.unsubscribe()
                raise
            return [_message(message) for message in messages]

    async def ack(self, messages: Sequence[Message]) -> None:
        await self._reply(messages, b"+ACK")

    async def extend(self, messages: Sequence[Message]) -> None:
        await self._reply(messages, b"+WPI")

    async def release(self, messages: Sequence[Message]) -> None:
        await self._reply(messages, b"-NAK")

    async def reject(self, message: Message, reason: str) -> None:
        """Publish a message to SUBJECT.rejected and end its delivery. Without a stream for that, it stays."""
        session = await self._open()
        rejected = replace(self._address, path=(f"{self._address.name}.rejected",))
        headers = {name.decode(): value.decode("latin-1") for name, value in message.headers}
        outgoing = Outgoing(key=message.id, body=message.body, headers={**headers, "Oncehook-Reason": reason})
        try:
            await self._send(rejected, outgoing)
        except _NotCaptured:
            if not session.keeps_rejected:
                delay = json.dumps({"delay": REJECTED_SECONDS * 10**9}).encode()
                await self._reply([message], b"-NAK " + delay)
                return
        await self._reply([message], b"+TERM")

    async def status(self) -> QueueStatus:
        """Count the messages. `dead` counts SUBJECT.rejected, if a stream captures it."""
        async with self._calls():
            session = await self._open()
            context = session.client.jetstream(timeout=CALL_SECONDS)
            info = await context.consumer_info(session.stream, self._durable)
            return QueueStatus(
                waiting=info.num_pending or 0,
                in_flight=info.num_ack_pending or 0,
                dead=await _count(context, f"{self._address.name}.rejected"),
                consumers=info.num_waiting or 0,
            )

    # -- the connection -------------------------------------------------------------------------------------------

    async def _open(self) -> _Session:
        """The connection, or a new one. Raises ConfigurationError if no stream captures the subject."""
        async with self._opening:
            session = self._session
            if session is None or not session.client.is_connected:
                if session is not None:
                    await close(session.client)
                async with self._calls():
                    self._session = session = await self._connect()
        return session

    async def _connect(self) -> _Session:
        client = await connect(self._address)
        try:
            context = client.jetstream(timeout=CALL_SECONDS)
            stream = await self._find_stream(context)
            config = ConsumerConfig(
                durable_name=self._durable,
                filter_subject=self._address.name,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_SECONDS,
                max_ack_pending=MAX_ACK_PENDING,
            )
            await context.add_consumer(stream, config)
            info = await context.stream_info(stream)
            subscription = await context.pull_subscribe_bind(self._durable, stream)
        except BaseException:
            await close(client)
            raise
        self.max_message = client.max_payload - HEADER_BYTES
        return _Session(client, stream, info.config.retention == RetentionPolicy.LIMITS, subscription)

    async def _find_stream(self, context: JetStreamContext) -> str:
        try:
            return await context.find_stream_name_by_subject(self._address.name)
        except NotFoundError:
            raise ConfigurationError(
                f"{self._where}: no stream of {self._address.origin} captures the subject {self._address.name}"
            ) from None

    async def _reply(self, messages: Sequence[Message], answer: bytes) -> None:
        """Answer the deliveries of messages, and return when the server has the answers."""
        async with self._calls():
            session = await self._open()
            for message in messages:
                await session.client.publish(message.handle, answer)
            await session.client.flush(timeout=int(CALL_SECONDS))

    async def _send(self, address: BrokerAddress, message: Outgoing) -> None:
        try:
            await self._publishers.publish(address, message, timeout=CALL_SECONDS)
        except NotStored as error:
            raise _NotCaptured(str(error)) from None
        except SendFailed as error:
            raise BrokerUnavailable(str(error)) from None

    @asynccontextmanager
    async def _calls(self, seconds: float = CALL_SECONDS) -> AsyncIterator[None]:
        """Raise BrokerUnavailable for every failure of the server, and after this time. Forget a failed connection."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (BrokerUnavailable, ConfigurationError):
            raise
        except (Error, APIError, SendFailed, OSError, TimeoutError) as error:
            session, self._session = self._session, None
            if session is not None:
                asyncio.ensure_future(_close_later(session.client))  # noqa: RUF006  # it ends by itself
            detail = str(error) if isinstance(error, SendFailed) else f"{self._address.origin}: {type(error).__name__}"
            raise BrokerUnavailable(detail) from None


class _NotCaptured(BrokerUnavailable):
    """No stream captures a subject, or the stream did not store the message."""


async def _close_later(client: Client) -> None:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await close(client)
    except Exception:
        return


async def _count(context: JetStreamContext, subject: str) -> int | None:
    """Count the messages of a subject. None if no stream captures it."""
    try:
        stream = await context.find_stream_name_by_subject(subject)
    except NotFoundError:
        return None
    info = await context.stream_info(stream, subjects_filter=subject)
    return (info.state.subjects or {}).get(subject, 0)


def _message(message: Msg) -> Message:
    """A message of JetStream. Its id has the time of the stream, so that a new stream gives no id a second time."""
    metadata = message.metadata
    at = metadata.timestamp.timestamp()
    return Message(
        id=f"{metadata.stream}:{metadata.sequence.stream}:{at:.6f}",
        body=message.data,
        headers=tuple(header_pairs(message.headers or {})),
        sent_at=at,
        receives=metadata.num_delivered or 1,
        handle=message.reply,
    )
