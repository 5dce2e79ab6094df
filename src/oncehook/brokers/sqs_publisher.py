"""SQS as a target: a message is acknowledged by the response to SendMessage, after SQS stored it on several servers.

A FIFO queue drops a second message with the same deduplication id within five minutes. A standard queue does not
deduplicate: the attribute `Idempotency-Key` is the same in each copy. AWS's own chain has the credentials.
"""

import base64
import hashlib
import json
import re
from typing import Any

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.aws import AwsClient
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import BrokerUnavailable, SendFailed, SendRefused

MAX_BYTES = 1024 * 1024
"""The size of a message, with its attributes. A queue may have a lower limit."""

READ_SECONDS = 60.0
"""Longer than any limit of a caller."""

REJECTED = frozenset(
    {
        "NonExistentQueue",
        "QueueDoesNotExist",
        "AccessDenied",
        "AccessDeniedException",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "MissingParameter",
        "UnsupportedOperation",
    }
)
"""Error codes with which a healthy service rejects a message."""

_REGION = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_PLAIN_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


class SqsPublisher:
    """Sends messages to the queues of one endpoint."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        region = _REGION.fullmatch(address.hosts[0][0])
        self._client = AwsClient(
            "sqs",
            needed_by=address.origin,
            region=region[1] if region else None,
            read_timeout=READ_SECONDS,
            attempts=1,  # the caller counts attempts
        )

    async def open(self) -> None:
        await self._client.open()

    async def publish(self, address: BrokerAddress, message: Message) -> None:
        """Return after the response of SQS."""
        origin, request = self.address.origin, compose(address, message)
        try:
            await self._client.call("send_message", **request)
        except BrokerUnavailable as error:
            if error.code in REJECTED:
                raise NotStored(f"{origin} did not store the message: {error.code}") from None
            raise SendFailed(f"{origin} did not acknowledge the message: {error.code}") from None

    async def close(self) -> None:
        await self._client.close()


def compose(address: BrokerAddress, message: Message) -> dict[str, Any]:
    """The parameters of SendMessage. Raises SendRefused for a message that is larger than SQS accepts.

    All headers are one attribute, because SQS allows ten. A body that SQS cannot hold as text is sent in base64.
    """
    text, encoding = _as_text(message.body)
    values = {
        "Idempotency-Key": message.key,
        "Headers": json.dumps(dict(message.headers), separators=(",", ":")),
        "Encoding": encoding,
    }
    size = len(text.encode()) + sum(len(name) + len("String") + len(value) for name, value in values.items())
    if size > MAX_BYTES:
        raise SendRefused(f"the message has {size:,} bytes, and SQS accepts {MAX_BYTES:,}")
    request: dict[str, Any] = {
        "QueueUrl": address.queue_url,
        "MessageBody": text,
        "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in values.items()},
    }
    if address.name.endswith(".fifo"):
        request["MessageDeduplicationId"] = _as_id(message.key)
        request["MessageGroupId"] = _as_id(message.group or message.key)
    return request


def _as_text(body: bytes) -> tuple[str, str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    return (text, "text") if _TEXT.fullmatch(text) else (base64.b64encode(body).decode() or "=", "base64")


def _as_id(text: str) -> str:
    """A deduplication or group id: at most 128 characters of ASCII."""
    if _PLAIN_ID.fullmatch(text):
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def make_publisher(address: BrokerAddress) -> SqsPublisher:
    return SqsPublisher(address)
