"""The rows of queries about email. Times are RFC 3339 texts."""

from oncehook.model.rows import QueryRow


class StoredStatus(QueryRow, frozen=True):
    """The status of a message for one recipient."""

    message_id: str
    recipient: str
    source: str
    status: str | None
    bounce: str | None
    reason: str | None
    occurred_at: str | None
    event_key: str
    delivered_at: str | None
    opened_at: str | None
    clicked_at: str | None
    last_at: str


class StoredFact(QueryRow, frozen=True):
    """One email event."""

    source: str
    key: str
    provider: str
    type: str
    bounce: str | None
    message_id: str
    recipient: str
    occurred_at: str
    reason: str | None
    tags: str  # a JSON array
    metadata: str  # a JSON object
    receipt: int


class EventCount(QueryRow, frozen=True):
    """The number of events with the same values in the chosen dimensions."""

    day: str | None
    source: str | None
    type: str | None
    bounce: str | None
    tag: str | None
    domain: str | None
    events: int


class Existence(QueryRow, frozen=True):
    """A row that exists if there is any data."""

    found: int
