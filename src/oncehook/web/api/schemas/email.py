"""Email in requests and responses."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from oncehook.web.api.schemas.values import Text, Time


class EmailMessageQuery(Struct, frozen=True):
    """Selects a message."""

    message: Annotated[str, Meta(min_length=1, max_length=998, description="The message id from the provider.")]


class EmailStatus(Struct):
    """The status of a message for one recipient, derived from its email events."""

    message_id: str
    recipient: str | None
    source: str
    status: str | None
    bounce: str | None
    reason: str | None
    occurred_at: str | None
    event: str | None
    delivered_at: str | None
    opened_at: str | None
    clicked_at: str | None
    last_at: str


class EmailEvent(Struct):
    """An email event for one recipient of a message."""

    source: str
    key: str
    provider: str
    type: str
    bounce: str | None
    message_id: str
    recipient: str | None
    occurred_at: str
    reason: str | None
    tags: list[Any]
    metadata: Any
    receipt: int


class EmailMessage(Struct):
    """A message: its status for each recipient, and its email events, oldest first."""

    statuses: list[EmailStatus]
    events: list[EmailEvent]


class SuppressedQuery(Struct, frozen=True):
    """Selects suppressions: all, those whose address contains a text, or one address."""

    address: Text = ""
    search: Text = ""
    cursor: Annotated[str, Meta(max_length=500, description="`next` of the previous page.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class Suppression(Struct):
    """A suppressed address, with the event or user that suppressed it."""

    address: str
    reason: str | None
    since: str | None
    source: str | None
    message_id: str | None
    added_at: str | None
    removed_at: str | None
    note: str | None
    actor: str | None
    event: str | None


class Suppressions(Struct):
    """A page of suppressions, ordered by address."""

    suppressions: list[Suppression]
    next: str | None


class SuppressionChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The address, and a note with the reason."""

    address: Annotated[str, Meta(min_length=1, max_length=500)]
    note: Text = ""


class EmailCountsQuery(Struct, frozen=True):
    """Selects a time range and a source. `by` is a comma-separated list of day, source, type, tag and domain."""

    by: Annotated[str, Meta(max_length=100)] = "day,type"
    since: Time = ""
    until: Time = ""
    source: Text = ""


class EmailCount(Struct, omit_defaults=True):
    """A count of email events. It has the keys in `by`; `type` adds `bounce`."""

    events: int
    day: str | None = None
    source: str | None = None
    type: str | None = None
    bounce: str | None = None
    tag: str | None = None
    domain: str | None = None


class EmailCounts(Struct):
    """Counts of the stored email events."""

    counts: list[EmailCount]
