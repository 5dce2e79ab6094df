"""One SQS queue: batches of up to ten messages, long polling, visibility, and the queue's attributes.

Each call with a batch returns the entries that SQS did not accept, so that the caller retries only those.
"""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from oncehook.brokers.aws import AwsClient
from oncehook.model.errors import ConfigurationError

T = TypeVar("T")

BATCH = 10
"""How many messages SQS takes or returns in one call."""

MAX_VISIBILITY = 43_200 - 300
"""The longest visibility timeout in seconds. SQS allows 12 hours from the receive, which was a while ago."""

LONG_POLL = 20
"""Seconds that SQS holds a receive while the queue is empty."""

_REGION = re.compile(r"https?://(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?/")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send. `group` and `deduplication` are used by FIFO queues only."""

    body: str
    group: str
    deduplication: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message that SQS has delivered. `handle` ends or changes this delivery, and no other."""

    body: str
    handle: str
    receives: int = 1
    id: str = ""


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """The properties of a queue, as SQS reports them. The counts are approximate."""

    waiting: int
    in_flight: int
    delayed: int
    dead_letter_arn: str | None
    max_receives: int | None

    @property
    def total(self) -> int:
        return self.waiting + self.in_flight + self.delayed


class SqsQueue:
    """A queue of SQS. Raises BrokerUnavailable if SQS does not respond or rejects a call."""

    def __init__(self, url: str, *, needed_by: str) -> None:
        self.url = check_url(url, needed_by)
        self.is_fifo = url.endswith(".fifo")
        region = _REGION.match(url)
        self._client = AwsClient(
            "sqs",
            needed_by=needed_by,
            region=None if region is None else region[1] or region[2],
            read_timeout=LONG_POLL + 10.0,
            attempts=1,  # callers retry
            connections=20,
        )

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        await self._client.close()

    async def send(self, messages: Sequence[Outgoing]) -> list[Outgoing]:
        """Send up to ten messages. Returns those that SQS did not accept."""
        entries = [self._entry(message) | {"Id": str(number)} for number, message in enumerate(messages)]
        response = await self._client.call("send_message_batch", QueueUrl=self.url, Entries=entries)
        return _failed(response, messages)

    def _entry(self, message: Outgoing) -> dict[str, Any]:
        if not self.is_fifo:
            return {"MessageBody": message.body}
        group = hashlib.sha256(message.group.encode("utf-8", "surrogatepass")).hexdigest()
        return {
            "MessageBody": message.body,
            "MessageGroupId": group,
            "MessageDeduplicationId": message.deduplication,
        }

    async def receive(self, visibility: float, *, wait: int = LONG_POLL, most: int = BATCH) -> list[Received]:
        """Receive up to ten messages, which no one else receives for `visibility` seconds."""
        response = await self._client.call(
            "receive_message",
            QueueUrl=self.url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait,
            VisibilityTimeout=_seconds(visibility),
            AttributeNames=["ApproximateReceiveCount"],
        )
        return [
            Received(
                message.get("Body", ""),
                message["ReceiptHandle"],
                int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
                message.get("MessageId", ""),
            )
            for message in response.get("Messages", ())
        ]

    async def delete(self, messages: Sequence[Received]) -> list[Received]:
        """Delete up to ten messages. Returns those that SQS did not delete."""
        entries = [{"Id": str(number), "ReceiptHandle": message.handle} for number, message in enumerate(messages)]
        response = await self._client.call("delete_message_batch", QueueUrl=self.url, Entries=entries)
        return _failed(response, messages)

    async def change_visibility(self, changes: Sequence[tuple[Received, float]]) -> list[tuple[Received, float]]:
        """Let up to ten messages be received again after a number of seconds each. Returns the changes that failed."""
        entries = [
            {"Id": str(number), "ReceiptHandle": message.handle, "VisibilityTimeout": _seconds(seconds)}
            for number, (message, seconds) in enumerate(changes)
        ]
        response = await self._client.call("change_message_visibility_batch", QueueUrl=self.url, Entries=entries)
        return _failed(response, changes)

    async def attributes(self) -> QueueAttributes:
        response = await self._client.call("get_queue_attributes", QueueUrl=self.url, AttributeNames=["All"])
        return _read_attributes(response.get("Attributes", {}))

    async def dead_letter_queue(self, arn: str) -> "SqsQueue":
        """Return the queue of this ARN. It shares this queue's client, and must not be closed."""
        account, name = arn.split(":")[4:6]
        parameters = {"QueueName": name, "QueueOwnerAWSAccountId": account}
        response = await self._client.call("get_queue_url", **parameters)
        queue = SqsQueue(response["QueueUrl"], needed_by="queue")
        queue._client = self._client
        return queue


def check_url(url: str, needed_by: str) -> str:
    """Return the URL of a queue. Raises ConfigurationError if it is none."""
    if not re.fullmatch(r"https?://[^\s/]+/\S+", url):
        raise ConfigurationError(
            f'{needed_by} needs the URL of an SQS queue: "sqs:https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"'
        )
    return url


def _read_attributes(values: dict[str, str]) -> QueueAttributes:
    redrive = json.loads(values.get("RedrivePolicy") or "{}")
    return QueueAttributes(
        waiting=int(values.get("ApproximateNumberOfMessages", 0)),
        in_flight=int(values.get("ApproximateNumberOfMessagesNotVisible", 0)),
        delayed=int(values.get("ApproximateNumberOfMessagesDelayed", 0)),
        dead_letter_arn=redrive.get("deadLetterTargetArn"),
        max_receives=int(redrive["maxReceiveCount"]) if "maxReceiveCount" in redrive else None,
    )


def _failed(response: dict[str, Any], items: Sequence[T]) -> list[T]:
    return [items[int(failure["Id"])] for failure in response.get("Failed", ())]


def _seconds(seconds: float) -> int:
    return max(0, min(math.ceil(seconds), MAX_VISIBILITY))
