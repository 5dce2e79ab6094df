"""The messages of the queue, and what becomes of a message whose receipt cannot be leased.

A message only names a receipt. A sender of messages can make a worker query a receipt, and nothing else:
the statement that leases decides whether the receipt is due.
"""

import enum
import json
from dataclasses import dataclass
from typing import Annotated

import msgspec

from oncehook.brokers.sqs import Outgoing, Received
from oncehook.model.event import MAIN
from oncehook.model.rows import ListedReceipt, QueuedReceipt
from oncehook.model.states import State

MAX_BODY = 4096
"""The most characters that a message may have. A receipt's name needs far fewer."""


class _Body(msgspec.Struct):
    receipt: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    consumer: Annotated[str, msgspec.Meta(max_length=255)] = MAIN
    replays: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    source: str = ""
    event_id: str = ""


_decoder = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A received message that names a receipt."""

    receipt: int
    consumer: str
    replays: int  # how often the receipt had been replayed when the message was sent
    received: Received
    source: str = ""
    event_id: str = ""


def parse(received: Received) -> QueueMessage | None:
    """Return the message, or None if it names no receipt. Accepts any text."""
    if len(received.body) > MAX_BODY:
        return None
    try:
        body = _decoder.decode(received.body.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return QueueMessage(
        receipt=body.receipt,
        consumer=body.consumer,
        replays=body.replays,
        received=received,
        source=body.source,
        event_id=body.event_id,
    )


def encode(receipt: QueuedReceipt) -> Outgoing:
    """Return the message of a receipt. Its source and event id are for people, and for the dead-letter queue.

    In a FIFO queue, messages of one serial key or object are delivered in order, and each lease of a receipt has its
    own deduplication id.
    """
    body = {
        "receipt": receipt.receipt,
        "consumer": receipt.consumer,
        "replays": receipt.replays,
        "source": receipt.source,
        "event_id": receipt.event_id,
    }
    key = receipt.serial_key or receipt.object_id
    return Outgoing(
        json.dumps(body),  # ASCII: SQS rejects some characters
        group=f"{receipt.receipt}" if key is None else f"{receipt.consumer}\n{receipt.source}\n{key}",
        deduplication=f"{receipt.receipt}-{receipt.replays}-{receipt.lease}",
    )


class End(enum.Enum):
    """What becomes of a message whose receipt was not leased."""

    DELETE = "delete"  # the receipt is finished, or it waits for something that no message brings about
    LATER = "later"  # it is due later: delete the message, and query the database then
    ELSEWHERE = "elsewhere"  # it is due, but not here: delete the message, and wake the workers of other processes
    DEAD_LETTER = "dead letter"  # the receipt is a dead letter, so the message goes to the queue's dead-letter queue
    QUARANTINE = "quarantine"  # the receipt's last worker died: lease it when nothing else runs


def end_of(message: QueueMessage, row: ListedReceipt | None, lease_seconds: float) -> End | float:
    """Return what becomes of a message whose receipt was not leased: its end, or the seconds until its next delivery.

    `row` is the receipt, or None if it does not exist. Deleting the message of a waiting receipt loses nothing: the
    sweep sends another one when the receipt is overdue.
    """
    if row is None or row.is_inline or row.status in (State.PROCESSED, State.IGNORED):
        return End.DELETE
    if row.status is State.FAILED:
        return End.DEAD_LETTER if row.replays == message.replays else End.DELETE
    if row.status is State.PROCESSING:  # a copy of the message, or its worker died
        return max((row.lease_left or 0.0) + 1.0, lease_seconds * 2.0 ** (min(message.received.receives, 16) - 2))
    if row.due_in is not None and row.due_in > 0:  # a copy, or SQS cannot delay a message until then
        return End.LATER
    if row.is_paused or row.consumer != message.consumer:
        return End.DELETE
    if row.is_rescued:
        return End.QUARANTINE
    return End.DELETE if row.serial_key is not None else End.ELSEWHERE
