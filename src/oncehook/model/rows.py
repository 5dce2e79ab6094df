"""The rows that the store returns, one type for each kind.

A time is RFC 3339 text where a field says `str`, and an aware `datetime` where it says so.
"""

from datetime import datetime
from typing import Any

import msgspec

from oncehook.model.event import EventFacts


class QueryRow(msgspec.Struct, frozen=True):
    """A row of a query: its fields are the query's columns."""

    def as_json(self) -> dict[str, Any]:
        """The row as it is printed: the same keys in the same order."""
        found: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(bytes, datetime))
        return found


class StoredDuplicate(QueryRow, frozen=True):
    """A delivery of an event that was here before."""

    received_at: str
    delivery_id: str | None
    same_body: bool


class StoredAttempt(QueryRow, frozen=True):
    """One attempt at a receipt."""

    number: int
    started_at: str | None
    ended_at: str | None
    outcome: str
    error: str | None
    traceback: str | None
    handler: str | None
    version: str | None
    worker: str | None


class WindowEnd(QueryRow, frozen=True):
    """Where a window of receipts ends."""

    received_at: str
    id: int


class ExpiredReceipt(EventFacts, kw_only=True, frozen=True):
    """A receipt whose lease expired."""

    type: str
    receipt: int
    lease: int
    attempt: int
    is_inline: bool
    worker: str | None


class AbandonedReceipt(EventFacts, kw_only=True, frozen=True):
    """An inline receipt whose provider stopped retrying."""

    type: str
    receipt: int
    attempt: int
    handler: str | None
    last_error: str | None


class Pause(QueryRow, frozen=True):
    """A paused source."""

    source: str
    paused_at: str
    actor: str
    reason: str | None
    ends_at: str | None


class PauseState(QueryRow, frozen=True):
    """Whether a pause has reached its end."""

    source: str
    is_over: bool


class EndedPause(QueryRow, frozen=True):
    """A pause that reached its end and was removed."""

    source: str
    ends_at: str


class DueWindow(QueryRow, frozen=True):
    """A window of due receipts: where those that may be leased begin, where it ends, and how many there are."""

    first: str | None
    last: str | None
    number: int
    lately: str  # a second ago


class LiveHandler(QueryRow, frozen=True):
    """A handler of a live process."""

    worker: str
    source: str
    pattern: str
    is_projection: bool
    seen_at: str


class WaitingType(QueryRow, frozen=True):
    """How many waiting receipts of a window have this type, and where the last one is."""

    source: str
    type: str
    number: int
    last: str


class Unhandled(QueryRow, frozen=True):
    """A source's events that no process handles."""

    source: str
    number: int
    since: str


class SelectedCount(QueryRow, frozen=True):
    """How many selected receipts are alike."""

    status: str
    typed: bool  # whether they have a type
    kept: bool  # whether their payloads are still there
    receipts: int


class ReplayEntry(QueryRow, frozen=True):
    """Who replayed a receipt, and when."""

    at: str
    actor: str


class AuditEntry(QueryRow, frozen=True):
    """What somebody did."""

    id: int
    at: str
    actor: str
    action: str
    detail: Any


class AuditedRun(QueryRow, frozen=True):
    """What the audit has of one action of a replay."""

    action: str
    rows: int
    number: int | None
    at: str
    last_at: str
    actor: str
    detail: str | None


class Time(QueryRow, frozen=True):
    """The database's time."""

    now: datetime


class ReceiptCount(QueryRow, frozen=True):
    """How many receipts of a source have one status."""

    source: str
    status: str
    receipts: int
    last_received_at: str


class DuplicateCount(QueryRow, frozen=True):
    """How many duplicates a source has had, and how many of them had another body."""

    source: str
    duplicates: int
    other_bodies: int


class DeadLetters(QueryRow, frozen=True):
    """Dead letters of one source, handler and error."""

    source: str
    handler: str | None
    last_error: str | None
    receipts: int
    first_received_at: str
    last_received_at: str
    first_failed_at: str
    last_failed_at: str
    last_receipt: int


class Rate(QueryRow, frozen=True):
    """How many of a series fall into one bucket of time."""

    series: str  # received, duplicate, failed or rejected
    source: str
    number: int
    bucket: int


class SourceCount(QueryRow, frozen=True):
    """A number for one source."""

    source: str
    number: int


class LastReceived(QueryRow, frozen=True):
    """When a source's newest event arrived."""

    source: str
    received_at: str


class SourceTotals(QueryRow, frozen=True):
    """Where each source stands."""

    waiting: dict[str, int]
    dead_letters: dict[str, int]
    last_received_at: dict[str, str]


class Prunable(QueryRow, frozen=True):
    """How many receipts and payloads of a source are older than their cutoffs."""

    source: str
    receipts: int
    payloads: int


class OldReceipt(QueryRow, frozen=True):
    """A finished receipt that is older than its cutoff."""

    id: int
    source: str
    received_at: datetime
    has_payload: bool


class StoredBody(QueryRow, frozen=True):
    """The payload of a receipt."""

    receipt_id: int
    body: bytes
    headers: str


class StoredRejection(QueryRow, frozen=True):
    """A sample of a rejected request."""

    id: int
    source: str
    rejected_at: str
    reason: str
    detail: str
    method: str
    query: str
    headers: str
    body: bytes
    size: int


class SecretUse(QueryRow, frozen=True):
    """How often a secret has verified a delivery."""

    source: str
    secret: str
    verified: int
    first_used_at: str
    last_used_at: str
    now: str  # the database's time
