"""What arrives, what is claimed, and what is kept: the nouns of the house.

Delivery   one HTTP request that arrived
Claim      one event of it, ready to be taken: the row that the door offers to the store
Claimed    what the store said: accepted, or a duplicate of which receipt
Receipt    the durable row, as it is read back
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Where a receipt stands. The comment says who moves it on; nobody but `prune` deletes a row."""

    RECEIVED = "received"  # committed by the door; a worker leases it
    PROCESSING = "processing"  # leased; the worker settles it, or its lease runs out
    PROCESSED = "processed"  # the handler's work is committed; only a replay moves it
    RETRYING = "retrying"  # waits for its next attempt; a worker leases it
    FAILED = "failed"  # a dead letter; only a replay moves it
    IGNORED = "ignored"  # not in the source's allow-list, or without a handler anywhere; only a replay moves it


TRANSITIONS: Mapping[State | None, frozenset[State]] = {
    None: frozenset({State.RECEIVED, State.PROCESSING, State.IGNORED, State.FAILED}),  # what the door may insert
    State.RECEIVED: frozenset({State.PROCESSING, State.IGNORED}),
    State.PROCESSING: frozenset({State.PROCESSED, State.RETRYING, State.FAILED, State.RECEIVED}),
    State.RETRYING: frozenset({State.PROCESSING, State.FAILED, State.IGNORED}),
    State.PROCESSED: frozenset({State.RECEIVED}),
    State.FAILED: frozenset({State.RECEIVED}),
    State.IGNORED: frozenset({State.RECEIVED}),
}
"""Every legal move. `None` is the world before the row; a move that is not here must not happen."""


LARGE = 256 * 1024
"""A body of more bytes is verified in a thread, and is no handshake."""

_NONE: frozenset[bytes] = frozenset()


def _repeated(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    counts = Counter(name for name, _ in headers)
    return frozenset(name for name, count in counts.items() if count > 1)


class Delivery:
    """One HTTP request: its raw bytes, and its headers as they came.

    Header names are lower-case bytes, as ASGI gives them. A header that came twice is in `repeated`,
    so that a scheme can refuse it instead of choosing one. `address` is what a listed proxy said that the sender used.
    """

    __slots__ = ("address", "body", "headers", "method", "path", "query", "repeated", "scheme")

    def __init__(
        self,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        method: str = "POST",
        path: str = "",
        query: bytes = b"",
        scheme: str = "http",
    ) -> None:
        pairs: list[tuple[bytes, bytes]] = headers if isinstance(headers, list) else list(headers)
        self.address = ""
        self.body = body
        self.method = method
        self.path = path
        self.query = query
        self.scheme = scheme
        self.headers = dict(pairs)
        self.repeated = _NONE if len(self.headers) == len(pairs) else _repeated(pairs)

    @classmethod
    def of(cls, body: bytes, headers: Mapping[str, str] | None = None) -> "Delivery":
        """A delivery from plain text headers, for code that has no ASGI scope at hand."""
        pairs = ((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items())
        return cls(body, pairs)


@dataclass(slots=True)
class Claim:
    """One event, ready to be taken. Every text in it is already short and free of NULs."""

    source: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    delivery_id: str | None
    occurred_at: datetime | None
    correlation_id: str | None
    status: State
    last_error: str | None
    fingerprint: bytes  # SHA-256 of the body without the fields that a provider changes per attempt
    body: bytes
    headers: str  # a JSON object, credentials left out
    inline_seconds: float | None = None  # an inline claim is leased at once, for so long
    serial_key: str | None = None  # events of a source with the same one are handled one at a time, in order
    keys: tuple[str, ...] = ()  # besides the id: no two receipts of a source have one in common


@dataclass(slots=True)
class Claimed:
    """What became of a claim. `fresh` is true for exactly one claim of an id, however many race for it."""

    receipt: int
    fresh: bool
    status: State
    kept: bytes  # the fingerprint of the body that the receipt keeps
    same_body: bool = True  # whether that is the body of this claim


@dataclass(slots=True)
class Duplicate:
    """A delivery of an event that was here before; appended aside, never written on its receipt."""

    receipt: int
    delivery_id: str | None
    fingerprint: bytes
    same_body: bool


@dataclass(frozen=True, slots=True)
class Rejection:
    """A sample of a refused request, for the doctor. Nothing in it is trusted, and no credential is in it."""

    source: str
    reason: str
    detail: str
    method: str
    query: str
    headers: str  # a JSON object
    body: bytes  # its beginning, where it was long
    size: int  # of the whole body


@dataclass(slots=True)
class Leased:
    """A receipt that a worker holds: the event whole, and the fence."""

    receipt: int
    lease: int
    attempt: int
    source: str
    provider: str
    event_id: str
    type: str
    object_id: str | None
    occurred_at: datetime | None
    received_at: datetime
    delivery_id: str | None
    correlation_id: str | None
    replays: int
    body: bytes | None
    headers: str | None
    serial_key: str | None = None

    @property
    def held(self) -> "Held":
        return self.receipt, self.lease


Held = tuple[int, int]
"""(receipt, lease): what a write must match to count. A lease that was lost matches nothing."""


@dataclass(slots=True)
class Settled:
    """What came of an attempt, as the store writes it: the receipt's new state and a row of history."""

    receipt: int
    lease: int
    status: State
    outcome: str
    after: float | None = None  # seconds until the next attempt
    error: str | None = None
    traceback: str | None = None
    handler: str | None = None
    version: str | None = None
    seconds: float | None = None  # how long it took; None: since the lease
    crashed: bool = False


UNHANDLED = "unhandled"
"""In a filter, in place of a state: events that wait and that no process has a handler for."""


class EffectState(StrEnum):
    """Where an effect stands. The comment says who moves it on."""

    WAITING = "waiting"  # recorded with its handler's work; a relay leases it
    PERFORMING = "performing"  # leased; the relay marks it, or its lease runs out
    RETRYING = "retrying"  # waits for its next attempt; a relay leases it
    DONE = "done"  # its target has taken it; nobody moves it any more
    FAILED = "failed"  # given up; only a replay moves it


@dataclass(slots=True)
class LeasedEffect:
    """An effect that a relay holds, and the fence."""

    id: int
    lease: int
    attempt: int
    scope: str
    key: str
    kind: str
    target: str
    args: str | None  # a JSON object; None: erased
    source: str
    receipt: int
    replays: int


@dataclass(slots=True)
class SettledEffect:
    """What came of an attempt at an effect, as the store writes it."""

    id: int
    lease: int
    status: EffectState
    after: float | None = None  # seconds until the next attempt
    error: str | None = None
    crashed: bool = False
    uncharged: bool = False  # no attempt was made: it goes back as it was


@dataclass(frozen=True, slots=True)
class EffectFilter:
    """Which effects are meant: all conditions hold together."""

    ids: tuple[int, ...] | None = None
    receipt: int | None = None
    status: str | None = None
    source: str | None = None
    key: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The durable row of an event, as SQL gives it back."""

    receipt: int
    source: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    occurred_at: datetime | None
    received_at: datetime
    status: State
    attempts: int
    next_attempt_at: datetime | None
    processed_at: datetime | None
    failed_at: datetime | None
    unhandled_at: datetime | None  # since when it waits and no process has a handler for it
    last_error: str | None
    duplicates: int
    correlation_id: str | None
    delivery_id: str | None
    replays: int

    def as_json(self) -> dict[str, Any]:
        """The event as the outside knows it: the same keys wherever an event is printed."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "unhandled_at"}
        for name in ("occurred_at", "received_at", "next_attempt_at", "processed_at", "failed_at"):
            row[name] = rfc3339(row[name])
        row["correlation_id"] = self.correlation_id or str(self.receipt)
        return row


@dataclass(frozen=True, slots=True)
class Payload:
    """What arrived: the exact bytes of the event, and the headers that were kept."""

    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
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


def rfc3339(moment: datetime | None) -> str | None:
    """A moment as text: RFC 3339, UTC, microseconds, always the same width."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")  # %Y drops zeros
