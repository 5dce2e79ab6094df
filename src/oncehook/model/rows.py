"""The rows that the store returns, one class for each query result.

A time is RFC 3339 text if its field is a `str`, and otherwise a `datetime` with a time zone.
"""

from datetime import datetime
from typing import Any

import msgspec

from oncehook.model.event import ConsumerFacts
from oncehook.model.states import State


class QueryRow(msgspec.Struct, frozen=True):
    """A row of a query result. Its fields are the columns of the query."""

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON data, with its fields as keys in the same order."""
        data: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(bytes, datetime))
        return data


class StoredDuplicate(QueryRow, frozen=True):
    """A repeated delivery of an event."""

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


class ConsumerReceipt(QueryRow, frozen=True):
    """The receipt that one consumer has of an event: its state for that consumer."""

    receipt: int
    consumer: str
    status: str
    attempts: int
    replays: int
    next_attempt_at: str | None
    processed_at: str | None
    failed_at: str | None
    unhandled_at: str | None
    handler: str | None  # of the last attempt
    last_error: str | None


class WindowEnd(QueryRow, frozen=True):
    """The position of the last receipt of a window."""

    received_at: str
    id: int


class ExpiredReceipt(ConsumerFacts, kw_only=True, frozen=True):
    """A receipt whose lease expired."""

    type: str
    receipt: int
    lease: int
    attempt: int
    is_inline: bool
    worker: str | None


class AbandonedReceipt(ConsumerFacts, kw_only=True, frozen=True):
    """An inline receipt that its provider no longer retries."""

    type: str
    receipt: int
    attempt: int
    handler: str | None
    last_error: str | None


class Pause(QueryRow, frozen=True):
    """A paused source, or a paused consumer with an empty source."""

    source: str
    consumer: str
    paused_at: str
    actor: str
    reason: str | None
    ends_at: str | None


class PauseState(QueryRow, frozen=True):
    """Whether the pause of a source or a consumer has ended."""

    source: str
    consumer: str
    is_over: bool


class EndedPause(QueryRow, frozen=True):
    """A pause that ended by itself and was deleted."""

    source: str
    consumer: str
    ends_at: str


class DueWindow(QueryRow, frozen=True):
    """A window of due receipts: the first one that may be leased, the last one, and their number."""

    first: str | None
    last: str | None
    number: int
    lately: str  # the time one second ago


class LiveHandler(QueryRow, frozen=True):
    """A handler of a live process."""

    worker: str
    consumer: str
    source: str
    pattern: str
    is_projection: bool
    seen_at: str


class StoredConsumer(QueryRow, frozen=True):
    """The subscription of a consumer to a source. `patterns` and `settings` are JSON."""

    name: str
    source: str
    patterns: str
    settings: str
    revision: int
    registered_at: str
    seen_at: str


class WaitingType(QueryRow, frozen=True):
    """The number of waiting receipts of a window with one type, and the position of the last one."""

    source: str
    type: str
    number: int
    last: str


class Unhandled(QueryRow, frozen=True):
    """The events of a source that no process handles for a consumer."""

    source: str
    consumer: str
    number: int
    since: str


class SelectedCount(QueryRow, frozen=True):
    """The number of selected receipts with the same status, with or without a type and a payload."""

    status: str
    has_type: bool
    has_payload: bool
    receipts: int


class ReplayEntry(QueryRow, frozen=True):
    """A replay of a receipt: who started it, and when."""

    at: str
    actor: str


class AuditEntry(QueryRow, frozen=True):
    """An entry of the audit log: an action of a person or a command."""

    id: int
    at: str
    actor: str
    action: str
    detail: Any


class AuditedRun(QueryRow, frozen=True):
    """The audit entries of one replay run with the same action, counted."""

    action: str
    rows: int
    number: int | None
    at: str
    last_at: str
    actor: str
    detail: str | None


class Time(QueryRow, frozen=True):
    """The current time of the database."""

    now: datetime


class Prunable(QueryRow, frozen=True):
    """The number of receipts and payloads of a source that are past their retention."""

    source: str
    receipts: int
    payloads: int


class OldReceipt(QueryRow, frozen=True):
    """A finished receipt that is past its retention."""

    id: int
    source: str
    received_at: datetime
    has_payload: bool


class StoredBody(QueryRow, frozen=True):
    """The payload of a receipt as it is stored, and the event's identity."""

    receipt_id: int
    body: bytes
    headers: str
    object: str | None
    source: str
    tenant: str
    event_id: str


class RegisteredKey(QueryRow, frozen=True):
    """A key that has encrypted rows. `proof` is a text that it encrypted."""

    key_id: str
    proof: str
    first_used_at: str


class KeyUse(QueryRow, frozen=True):
    """How many rows of a table a key has encrypted."""

    table: str
    key_id: str
    number: int


class Leader(QueryRow, frozen=True):
    """The last leader of a task, and whether its term still runs."""

    task: str
    leader: str
    number: int
    taken_at: str
    expires_at: str
    is_held: bool


class ReceiptTime(QueryRow, frozen=True):
    """When a receipt was committed."""

    id: int
    received_at: datetime


class TenantCounts(QueryRow, frozen=True):
    """The number of rows of one tenant."""

    receipts: int
    effects: int
    entities: int
    rejections: int


class StoredRejection(QueryRow, frozen=True):
    """A sample of a rejected request."""

    id: int
    source: str
    tenant: str
    rejected_at: str
    reason: str
    detail: str
    method: str
    query: str
    headers: str
    body: bytes
    size: int


class SecretUse(QueryRow, frozen=True):
    """How many deliveries a secret has verified. `secret` is its fingerprint."""

    source: str
    secret: str
    verified: int
    first_used_at: str
    last_used_at: str
    now: str  # the current time of the database


class ManagedSource(QueryRow, frozen=True):
    """A source that Oncehook manages. `settings` is JSON, `secrets` is sealed, and `now` is the database's time."""

    name: str
    settings: str
    secrets: str
    revision: int
    created_at: str
    updated_at: str
    removed_at: str | None
    actor: str
    now: str


class ManagedTenant(QueryRow, frozen=True):
    """A tenant that Oncehook manages. `secrets` is sealed, and `now` is the database's time."""

    source: str
    tenant: str
    secrets: str
    revision: int
    created_at: str
    updated_at: str
    removed_at: str | None
    actor: str
    now: str


class ChangedTenant(QueryRow, frozen=True):
    """A tenant that was added, rotated or removed."""

    source: str
    tenant: str
    revision: int


class QueuedReceipt(QueryRow, frozen=True):
    """A receipt to send to a queue of workers."""

    receipt: int
    source: str
    event_id: str
    consumer: str
    replays: int
    lease: int
    serial_key: str | None
    object_id: str | None


class ListedReceipt(QueryRow, frozen=True):
    """The state of a receipt that a message of the queue names, and why a worker may not have it now."""

    receipt: int
    source: str
    consumer: str
    serial_key: str | None
    status: State
    replays: int
    is_inline: bool
    is_rescued: bool
    is_paused: bool
    due_in: float | None
    lease_left: float | None
