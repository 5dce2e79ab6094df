"""Kafka: a message is acknowledged by its delivery report, after all in-sync replicas have stored it (`acks=all`).

With `min.insync.replicas` of 2 or more, an acknowledged message survives the loss of a broker. The producer is
idempotent: its own retries do not duplicate a message. A message that Oncehook sends again is a second message with the
same message key. The client library blocks, so it runs in a thread, and its reports are passed to the event loop.
"""

import asyncio
import logging
import threading
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import OncehookError, SendFailed, SendRefused

POLL_SECONDS = 0.1
MESSAGE_SECONDS = 30
"""How long the library itself tries to send a message. The caller's limit is shorter."""

REJECTED = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_MSG,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Errors with which a healthy cluster rejects a message."""

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE})

_silent = logging.getLogger("oncehook.brokers.librdkafka")
_silent.propagate = False
_silent.addHandler(logging.NullHandler())  # the caller of a failed operation gets its own error


def client_settings(address: BrokerAddress) -> dict[str, Any]:
    """The settings that producers and consumers share. The option `sasl` chooses the mechanism of a password."""
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(address.servers),
        "client.id": "oncehook",
        "logger": _silent,
        "error_cb": lambda error: None,
    }
    if address.user is not None:
        settings["sasl.mechanism"] = address.options.get("sasl", "PLAIN")
        settings["sasl.username"] = address.user
        settings["sasl.password"] = address.password or ""
    settings["security.protocol"] = ("SASL_" if address.user else "") + ("SSL" if address.secure else "PLAINTEXT")
    return settings


class KafkaPublisher:
    """An idempotent producer, and the thread that reads its delivery reports."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    async def open(self) -> None:
        """Make the producer. It connects by itself, when there is a message to send."""
        settings = {
            **client_settings(self.address),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": MESSAGE_SECONDS * 1000,
        }
        try:
            self._producer = await asyncio.to_thread(Producer, settings)
        except (KafkaException, ValueError, TypeError):
            raise SendFailed(f"the client for {self.address.origin} could not be set up") from None
        self._thread = threading.Thread(target=self._read_reports, args=(self._producer,), daemon=True)
        self._thread.start()

    def _read_reports(self, producer: Producer) -> None:
        while not self._stop.is_set():
            producer.poll(POLL_SECONDS)

    async def publish(self, address: BrokerAddress, message: Message) -> None:
        """Return after the delivery report. The message key is the message's key, and so is its header."""
        loop = asyncio.get_running_loop()
        reported: asyncio.Future[None] = loop.create_future()

        def report(error: KafkaError | None, _: Report) -> None:  # in the thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, reported, None if error is None else self._exception(error))

        assert self._producer is not None, "a publisher is opened before it publishes"
        try:
            self._producer.produce(
                address.name,
                message.body,
                message.key,
                headers=[(name, value.encode()) for name, value in message.headers.items()],
                on_delivery=report,
            )
        except BufferError:
            raise SendFailed(f"{self.address.origin} is too slow: the queue of messages to it is full") from None
        except KafkaException as error:
            raise self._exception(error.args[0]) from None
        await reported

    def _exception(self, error: KafkaError) -> OncehookError:
        code, origin = error.code(), self.address.origin
        if code in TOO_LARGE:
            return SendRefused(f"the message is larger than {origin} accepts")
        if code in REJECTED:
            return NotStored(f"{origin} did not store the message: {error.name()}")
        return SendFailed(f"{origin} did not acknowledge the message: {error.name()}")

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._stop.set()
        if self._thread is not None and self._producer is not None:
            self._producer.purge()
            self._thread.join()
            self._producer.flush(0)
        self._producer = None


def _settle(reported: "asyncio.Future[None]", error: OncehookError | None) -> None:
    if reported.done():
        return
    if error is None:
        reported.set_result(None)
    else:
        reported.set_exception(error)


def make_publisher(address: BrokerAddress) -> KafkaPublisher:
    return KafkaPublisher(address)
