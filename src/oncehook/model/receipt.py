"""A receipt, which is the stored row of an event, its payload, and the filter that selects receipts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oncehook.model.event import ConsumerFacts
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339


class Receipt(ConsumerFacts, kw_only=True, frozen=True):
    """The receipt of an event: its stored row.

    It has the event's properties, the status and a summary of the attempts.

        async for receipt in inbox.events(status="failed"):
            print(receipt.receipt, receipt.type, receipt.last_error)
    """

    receipt: int
    received_at: datetime
    status: State
    attempts: int
    next_attempt_at: datetime | None
    processed_at: datetime | None
    failed_at: datetime | None
    unhandled_at: datetime | None  # since when it waits for a process with a handler
    last_error: str | None
    duplicates: int
    replays: int
    origin: str | None = None  # the queue of an intake that it came from; None: over HTTP
    main_id: int | None = None  # the receipt of `main`, if this is the receipt of another consumer

    def as_json(self) -> dict[str, Any]:
        """Return the event as JSON data, with the same keys as in the command line and the JSON API."""
        row = {name: getattr(self, name) for name in PRINTED}
        row["tenant"] = self.tenant or None
        row["origin"] = self.origin or "http"
        for name in ("occurred_at", "received_at", "next_attempt_at", "processed_at", "failed_at"):
            row[name] = rfc3339(row[name])
        row["correlation_id"] = self.correlation_id or str(self.receipt)
        return row


PRINTED = (
    "receipt",
    "source",
    "tenant",
    "consumer",
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
    "origin",
    "replays",
)
"""The keys of an event's JSON, in this order. Of a receipt's fields, `unhandled_at` and `main_id` are left out."""


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """The stored payload of an event: its exact bytes and its headers without credentials."""

    body: bytes
    headers: dict[str, str]
    is_encrypted: bool = False  # at rest; this is the decrypted payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects receipts, in the command line, the dashboard and the API: all conditions must hold."""

    source: str | None = None
    tenant: str | None = None
    consumer: str | None = None
    type: str | None = None
    object: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    search: str | None = None
    event_id: str | None = None
