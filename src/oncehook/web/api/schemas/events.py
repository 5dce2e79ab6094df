"""Events and dead letters in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.web.api.schemas.effects import Effect
from oncehook.web.api.schemas.values import Cursor, StateName, Text, Time


class EventsQuery(Struct, frozen=True):
    """Filters events. All conditions must hold."""

    source: Text = ""
    tenant: Text = ""
    consumer: Text = ""
    type: Annotated[str, Meta(max_length=500, description="A pattern with * and ?, or a dotted prefix.")] = ""
    object: Text = ""
    status: StateName | Literal["unhandled", ""] = ""
    since: Time = ""
    until: Time = ""
    search: Annotated[str, Meta(max_length=500, description="An id, an object, or a text in the payload.")] = ""
    cursor: Cursor = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class Event(Struct):
    """An event, with the same keys as in the CLI."""

    receipt: int
    source: str
    tenant: str | None
    consumer: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    occurred_at: str | None
    received_at: str
    status: StateName
    attempts: int
    next_attempt_at: str | None
    processed_at: str | None
    failed_at: str | None
    last_error: str | None
    duplicates: int
    correlation_id: str
    delivery_id: str | None
    origin: str
    replays: int


class Events(Struct):
    """A page of events, newest first. `next` is null on the last page.

    `looked_to` is set if the search ran out of time: it is how far back the page searched. `note` is set if the search
    left out encrypted payloads.
    """

    events: list[Event]
    next: str | None
    looked_to: str | None
    note: str | None


class DuplicateDelivery(Struct):
    """A repeated delivery of an event."""

    received_at: str
    delivery_id: str | None
    same_body: bool


class Attempt(Struct):
    """An attempt of a handler, and its outcome."""

    number: int
    started_at: str
    ended_at: str
    outcome: str
    error: str | None
    traceback: str | None
    handler: str | None
    version: str | None
    worker: str | None


class EventReplay(Struct):
    """A replay of an event, and who started it."""

    at: str
    actor: str


class Noop(Struct):
    """A request of a handler that was skipped: a repeated effect, or the update of an entity by a stale event."""

    at: str
    reason: Literal["effect", "stale"]
    scope: str
    key: str


class Entity(Struct):
    """The newest state of an entity, and the event it comes from."""

    kind: str
    id: str
    state: str | None
    at: str | None
    version: int | None
    is_terminal: bool
    event_id: str
    receipt: int
    updated_at: str


class EventConsumer(Struct):
    """The state of an event for one of its consumers. `receipt` is the receipt that this consumer has of the event."""

    receipt: int
    consumer: str
    status: StateName
    attempts: int
    replays: int
    next_attempt_at: str | None
    processed_at: str | None
    failed_at: str | None
    unhandled_at: str | None
    handler: str | None
    last_error: str | None


class EventDetail(Event):
    """An event with its payload and history, as one consumer has it. `consumers` has the states of all, `main` first.

    `payload` is null if the body is not JSON. `unreadable` says why an encrypted payload cannot be decrypted. `effects`
    has the newest 100. `entities` are the source's entities whose id is the event's `object_id`.
    """

    consumers: list[EventConsumer]
    payload: Any
    headers: dict[str, str] | None
    unreadable: str | None
    deliveries: list[DuplicateDelivery]
    attempts_history: list[Attempt]
    replays_history: list[EventReplay]
    effects: list[Effect]
    noops: list[Noop]
    entities: list[Entity]


class RetryNow(Struct):
    """A retry that was made due now."""

    receipt: int
    retried: bool


class Erasure(Struct):
    """How many payloads were erased."""

    erased: int


class DeadGroup(Struct):
    """Dead letters with similar errors."""

    source: str
    consumer: str
    handler: str | None
    last_error: str | None
    receipts: int
    first_received_at: str
    last_received_at: str
    first_failed_at: str
    last_failed_at: str
    last_receipt: int


class DeadLetters(Struct):
    """Dead letters grouped by error, the largest group first."""

    total: int
    groups: list[DeadGroup]
