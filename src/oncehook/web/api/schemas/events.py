"""Events and dead letters in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.web.api.schemas.effects import Effect
from oncehook.web.api.schemas.values import Cursor, StateName, Text, Time


class EventsQuery(Struct, frozen=True):
    """Which events; all conditions hold together."""

    source: Text = ""
    type: Annotated[str, Meta(max_length=500, description="A pattern with * and ?, or a dotted prefix.")] = ""
    object: Text = ""
    status: StateName | Literal["unhandled", ""] = ""
    since: Time = ""
    until: Time = ""
    search: Annotated[str, Meta(max_length=500, description="An id, an object, or a text in the payload.")] = ""
    cursor: Cursor = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class Event(Struct):
    """An event, with the same keys wherever it is printed."""

    receipt: int
    source: str
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
    replays: int


class Events(Struct):
    """A page, newest first. `next` is null at the end; `looked_to` is set where looking stopped for time."""

    events: list[Event]
    next: str | None
    looked_to: str | None


class Delivered(Struct):
    """A delivery of an event that was here before."""

    received_at: str
    delivery_id: str | None
    same_body: bool


class Attempted(Struct):
    """What came of an attempt."""

    number: int
    started_at: str
    ended_at: str
    outcome: str
    error: str | None
    traceback: str | None
    handler: str | None
    version: str | None
    worker: str | None


class ReplayedBy(Struct):
    """A replay."""

    at: str
    actor: str


class Noop(Struct):
    """What a handler asked for and did not get: an effect of before, or a state older than what is known."""

    at: str
    reason: Literal["effect", "stale"]
    scope: str
    key: str


class Entity(Struct):
    """The newest that is known of an entity, and the event that said so."""

    kind: str
    id: str
    state: str | None
    at: str | None
    version: int | None
    is_terminal: bool
    event_id: str
    receipt: int
    updated_at: str


class WholeEvent(Event):
    """An event with all that is known of it. `payload` is the body as JSON, where it is JSON; of its effects the
    newest 100. `entities` are those of its source whose id is its `object_id`.
    """

    payload: Any
    headers: dict[str, str] | None
    deliveries: list[Delivered]
    attempts_history: list[Attempted]
    replays_history: list[ReplayedBy]
    effects: list[Effect]
    noops: list[Noop]
    entities: list[Entity]


class Retried(Struct):
    """A waiting retry that is due now."""

    receipt: int
    retried: bool


class Erased(Struct):
    """How many payloads went."""

    erased: int


class DeadGroup(Struct):
    """Dead letters that died of the same thing."""

    source: str
    handler: str | None
    last_error: str | None
    receipts: int
    first_received_at: str
    last_received_at: str
    first_failed_at: str
    last_failed_at: str
    last_receipt: int


class Dead(Struct):
    """Dead letters by what went wrong, the largest group first."""

    total: int
    groups: list[DeadGroup]
