"""What the API takes and answers about email."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from oncehook.web.api.schemas.values import Text, Time


class EmailMessageQuery(Struct, frozen=True):
    """Which message."""

    message: Annotated[str, Meta(min_length=1, max_length=998, description="The id that the provider gave it.")]


class EmailStatus(Struct):
    """What became of a message for one recipient, as far as its facts say."""

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


class EmailFact(Struct):
    """One thing that happened to one recipient of a message."""

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
    """A message: its status for each recipient, and the facts behind it, oldest first."""

    statuses: list[EmailStatus]
    events: list[EmailFact]


class SuppressedQuery(Struct, frozen=True):
    """All of them, those with a text in the address, or exactly one address."""

    address: Text = ""
    search: Text = ""
    cursor: Annotated[str, Meta(max_length=500, description="`next` of the page before.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class Suppression(Struct):
    """An address that must not be sent to, since when, and which event or person says so."""

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
    """A page, by address."""

    suppressions: list[Suppression]
    next: str | None


class SuppressionChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Which address, and why."""

    address: Annotated[str, Meta(min_length=1, max_length=500)]
    note: Text = ""


class EmailCountsQuery(Struct, frozen=True):
    """Of which time and source, and by what: any of day, source, type, tag and domain, with commas."""

    by: Annotated[str, Meta(max_length=100)] = "day,type"
    since: Time = ""
    until: Time = ""
    source: Text = ""


class EmailCount(Struct, omit_defaults=True):
    """How many events; the keys are those that were asked for, and `bounce` with the type."""

    events: int
    day: str | None = None
    source: str | None = None
    type: str | None = None
    bounce: str | None = None
    tag: str | None = None
    domain: str | None = None


class EmailCounts(Struct):
    """Counted from the stored facts, whenever it is asked."""

    counts: list[EmailCount]
