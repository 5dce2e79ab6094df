"""Effects: their states, what a relay holds, and what it writes afterwards."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from oncehook.model.rows import QueryRow


class EffectState(StrEnum):
    """Where an effect stands. The comment says who moves it on."""

    WAITING = "waiting"  # recorded with its handler's work; a relay leases it
    PERFORMING = "performing"  # leased; the relay marks it, or its lease runs out
    RETRYING = "retrying"  # waits for its next attempt; a relay leases it
    DONE = "done"  # its target has taken it; nobody moves it any more
    FAILED = "failed"  # given up; only a replay moves it


class LeasedEffect(msgspec.Struct, kw_only=True):
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


class SettledEffect(msgspec.Struct):
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


class StoredEffect(QueryRow, frozen=True):
    """An effect as the table has it."""

    id: int
    scope: str
    key: str
    kind: str
    target: str
    status: str
    attempts: int
    created_at: str
    next_attempt_at: str | None
    done_at: str | None
    last_error: str | None
    source: str
    receipt: int
    replays: int
    worker: str | None
    args: str | None  # a JSON object; None: erased


class ExpiredEffect(QueryRow, frozen=True):
    """An effect whose lease expired."""

    id: int
    lease: int
    attempt: int
    kind: str
    target: str
    key: str


class WaitingEffects(QueryRow, frozen=True):
    """The effects of one kind and target that wait to be performed."""

    kind: str
    target: str
    effects: int
    crashed: int  # due, and their last process died
    lag: float  # seconds since the oldest was due


class StoredNoop(QueryRow, frozen=True):
    """What an event asked for and did not get."""

    at: str
    reason: str  # "effect" or "stale"
    scope: str
    key: str


class NoopCount(QueryRow, frozen=True):
    """How many noops of one reason a source has."""

    source: str
    reason: str
    noops: int


class EntityState(QueryRow, frozen=True):
    """Where an entity stands."""

    is_terminal: bool
    at: datetime | None
    version: int | None
    event_id: str
    state: str | None


class StoredEntity(QueryRow, frozen=True):
    """What is known of an object, and which event said so."""

    kind: str
    id: str
    state: str | None
    at: str | None
    version: int | None
    is_terminal: bool
    event_id: str
    receipt: int
    updated_at: str
