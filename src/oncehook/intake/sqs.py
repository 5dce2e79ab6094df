"""Amazon SQS as the broker of an intake.

A message that is received is invisible for a while, and is visible again unless it is deleted. The queue's redrive
policy counts how often a message was received, and moves it to the dead-letter queue after `maxReceiveCount`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from oncehook.brokers.aws import AwsClient
from oncehook.intake.broker import Message, QueueStatus
from oncehook.intake.formats import header_pairs
from oncehook.model.errors import BrokerUnavailable, ConfigurationError

WAIT_SECONDS = 20
"""For how long a `receive` waits for a message: the longest that SQS allows."""

DEFAULT_VISIBILITY = 30
"""For how many seconds SQS does not deliver a message again that a consumer holds, unless the queue says otherwise."""

REJECTED_SECONDS = 60
"""After how many seconds a rejected message is visible again, for the redrive policy to count it."""

MAX_INVISIBLE_SECONDS = 43200
DEFAULT_SIZE = 262_144
_ADDRESS = re.compile(r"https?://[^\s/?#]+(?:/[^\s/?#]+)*/(?P<name>[A-Za-z0-9_-]{1,80}(?:\.fifo)?)", re.ASCII)
_REGION = re.compile(r"https?://sqs\.([a-z0-9-]+)\.amazonaws\.com")
_MISSING = ("NonExistentQueue", "QueueDoesNotExist")


class SqsBroker:
    """Implements `Broker` on one queue of SQS. `address` is the URL of the queue."""

    parallel = 4
    batch = 10
    wait_seconds = WAIT_SECONDS
    rejected_seconds = REJECTED_SECONDS

    def __init__(self, address: str, source: str) -> None:
        where = f"sources.{source}.intake"
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ConfigurationError(
                f"{where} is not the URL of a queue: expected sqs:https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
            )
        self.name = f"sqs:{match['name']}"
        self.max_message = DEFAULT_SIZE
        self.extend_every = DEFAULT_VISIBILITY / 3
        self._where = where
        self._address = address
        self._is_fifo = address.endswith(".fifo")
        self._has_redrive = False
        self._visibility = DEFAULT_VISIBILITY
        region = _REGION.match(address)
        self._aws = AwsClient(
            "sqs",
            needed_by=where,
            region=region[1] if region else None,
            read_timeout=WAIT_SECONDS + 10,
            attempts=2,
            connections=50,
        )

    async def start(self) -> None:
        await self._aws.open()
        await self._read_attributes()

    async def stop(self) -> None:
        await self._aws.close()

    async def publish(self, body: bytes, message_id: str) -> None:
        fifo = {"MessageGroupId": message_id, "MessageDeduplicationId": message_id} if self._is_fifo else {}
        await self._call("send_message", MessageBody=body.decode("ascii"), **fifo)

    async def receive(self, *, wait: bool = True) -> list[Message]:
        response = await self._call(
            "receive_message",
            MaxNumberOfMessages=self.batch,
            WaitTimeSeconds=self.wait_seconds if wait else 0,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["SentTimestamp", "ApproximateReceiveCount"],
        )
        return [_message(message) for message in response.get("Messages", ())]

    async def ack(self, messages: Sequence[Message]) -> None:
        entries = [{"Id": str(i), "ReceiptHandle": message.handle} for i, message in enumerate(messages)]
        await self._call_batch("delete_message_batch", entries)

    async def extend(self, messages: Sequence[Message]) -> None:
        await self._hide(messages, self._visibility)

    async def release(self, messages: Sequence[Message]) -> None:
        await self._hide(messages, 0)

    async def reject(self, message: Message, reason: str) -> None:
        """Leave a message to the redrive policy. Without one, it is hidden longer each time, up to 12 hours."""
        seconds = self.rejected_seconds
        if not self._has_redrive:
            seconds = min(MAX_INVISIBLE_SECONDS - 60, self.rejected_seconds * 2 ** min(message.receives, 10))
        await self._hide([message], seconds)

    async def status(self) -> QueueStatus:
        attributes = await self._read_attributes()
        waiting = int(attributes["ApproximateNumberOfMessages"]) + int(
            attributes.get("ApproximateNumberOfMessagesDelayed", 0)
        )
        return QueueStatus(
            waiting=waiting,
            in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
            dead=await self._count_dead(attributes),
        )

    async def _read_attributes(self) -> dict[str, str]:
        """Read the attributes of the queue. Raises ConfigurationError if there is no such queue."""
        try:
            response = await self._call("get_queue_attributes", AttributeNames=["All"])
        except BrokerUnavailable as error:
            if error.code in _MISSING:
                raise ConfigurationError(f"{self._where}: the queue {self.name} does not exist") from None
            raise
        attributes: dict[str, str] = response["Attributes"]
        self.max_message = int(attributes.get("MaximumMessageSize", DEFAULT_SIZE))
        self._visibility = max(1, int(attributes.get("VisibilityTimeout", DEFAULT_VISIBILITY)))
        self.extend_every = self._visibility / 3
        self._has_redrive = "RedrivePolicy" in attributes
        return attributes

    async def _count_dead(self, attributes: dict[str, str]) -> int | None:
        """Count the messages of the dead-letter queue. None if there is none, or it cannot be read."""
        if "RedrivePolicy" not in attributes:
            return None
        try:
            *_, account, name = str(msgspec.json.decode(attributes["RedrivePolicy"])["deadLetterTargetArn"]).split(":")
            queue = await self._aws.call("get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account)
            response = await self._aws.call(
                "get_queue_attributes",
                QueueUrl=queue["QueueUrl"],
                AttributeNames=["ApproximateNumberOfMessages"],
            )
        except BrokerUnavailable:
            return None
        return int(response["Attributes"]["ApproximateNumberOfMessages"])

    async def _hide(self, messages: Sequence[Message], seconds: int) -> None:
        """Make messages visible again after `seconds`."""
        await self._call_batch(
            "change_message_visibility_batch",
            [
                {"Id": str(i), "ReceiptHandle": message.handle, "VisibilityTimeout": seconds}
                for i, message in enumerate(messages)
            ],
        )

    async def _call_batch(self, operation: str, entries: Sequence[dict[str, Any]]) -> None:
        """Call an operation for up to ten messages at a time. A message that failed is delivered again."""
        for start in range(0, len(entries), self.batch):
            await self._call(operation, Entries=entries[start : start + self.batch])

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await self._aws.call(operation, QueueUrl=self._address, **parameters)


def _message(message: dict[str, Any]) -> Message:
    system = message.get("Attributes", {})
    return Message(
        id=message["MessageId"],
        body=message["Body"].encode("utf-8", "surrogatepass"),
        headers=tuple(_headers(message.get("MessageAttributes", {}))),
        sent_at=int(system.get("SentTimestamp", 0)) / 1000,
        receives=int(system.get("ApproximateReceiveCount", 1)),
        handle=message["ReceiptHandle"],
    )


def _headers(attributes: dict[str, Any]) -> Iterable[tuple[bytes, bytes]]:
    """The attributes of a message as headers. A binary attribute is none."""
    return header_pairs({name: attribute.get("StringValue") for name, attribute in attributes.items()})
