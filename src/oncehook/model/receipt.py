"""The durable row of an event, as it is read back, and which rows are meant."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oncehook.model.event import EventFacts
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339


class Receipt(EventFacts, kw_only=True, frozen=True):
    """The durable row of an event, as SQL gives it back."""

    receipt: int
    received_at: datetime
    status: State
    attempts: int
    next_attempt_at: datetime | None
    processed_at: datetime | None
    failed_at: datetime | None
    unhandled_at: datetime | None  # since when it waits and no process has a handler for it
    last_error: str | None
    duplicates: int
    replays: int

    def as_json(self) -> dict[str, Any]:
        """The event as the outside knows it: the same keys wherever an event is printed."""
        row = {name: getattr(self, name) for name in PRINTED}
        for name in ("occurred_at", "received_at", "next_attempt_at", "processed_at", "failed_at"):
            row[name] = rfc3339(row[name])
        row["correlation_id"] = self.correlation_id or str(self.receipt)
        return row


PRINTED = (
    "receipt",
    "source",
    "provider",
    "event_id",
    "type",
    "object_id",
    "occurred_at",
    "received_at",
    "status",
    "attempts",
    "next_attempt_at",
    "processed_at",
    "failed_at",
    "last_error",
    "duplicates",
    "correlation_id",
    "delivery_id",
    "replays",
)
"""The keys of a printed event, in this order. Of a receipt's fields only `unhandled_at` is not printed."""


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """What arrived: the exact bytes of the event, and the headers that were kept."""

    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which receipts are meant, wherever a person picks some: all conditions hold together."""

    source: str | None = None
    type: str | None = None
    object: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    search: str | None = None
    event_id: str | None = None
