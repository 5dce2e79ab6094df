"""Effects: their states, leases and settlements, and the rows of their tables."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from oncehook.model.errors import OncehookError
from oncehook.model.rows import QueryRow


class EffectState(StrEnum):
    """The status of an effect. The comment says which component changes it."""

    WAITING = "waiting"  # recorded in the handler's transaction; a relay leases it
    PERFORMING = "performing"  # leased; the relay settles it, or its lease expires
    RETRYING = "retrying"  # waits for its next attempt; a relay leases it
    DONE = "done"  # its target accepted the call; a final state
    FAILED = "failed"  # no attempts left; only a replay changes it


class LeasedEffect(msgspec.Struct, kw_only=True):
    """An effect that a relay has leased. `lease` is the fencing counter."""

    id: int
    lease: int
    attempt: int
    scope: str
    key: str
    kind: str
    target: str
    args: str | None  # a JSON object; None if it was erased
    source: str
    receipt: int
    replays: int
    is_encrypted: bool = False  # its arguments are encrypted at rest, so its error texts must be too
    key_error: OncehookError | None = None  # why the arguments could not be decrypted; they are None


class SettledEffect(msgspec.Struct):
    """The result of an attempt at an effect, which the store writes."""

    id: int
    lease: int
    status: EffectState
    after: float | None = None  # seconds until the next attempt
    error: str | None = None
    crashed: bool = False
    uncharged: bool = False  # the effect is released: no attempt is counted


@dataclass(frozen=True, slots=True)
class EffectFilter:
    """Selects effects: all conditions must hold."""

    ids: tuple[int, ...] | None = None
    receipt: int | None = None
    status: str | None = None
    source: str | None = None
    key: str | None = None
    target: str | None = None


class StoredEffect(QueryRow, frozen=True):
    """A row of the effects table."""

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
    args: str | None  # a JSON object; None if it was erased


class ExpiredEffect(QueryRow, frozen=True):
    """An effect whose lease expired."""

    id: int
    lease: int
    attempt: int
    kind: str
    target: str
    key: str


class WaitingEffects(QueryRow, frozen=True):
    """The number of effects of one kind and target that wait for the relay."""

    kind: str
    target: str
    effects: int
    crashed: int  # due effects whose last process died
    lag: float  # seconds since the oldest became due


class StoredNoop(QueryRow, frozen=True):
    """A request of an event that changed nothing, as a row."""

    at: str
    reason: str  # "effect" or "stale"
    scope: str
    key: str


class NoopCount(QueryRow, frozen=True):
    """The number of noops of a source with one reason."""

    source: str
    reason: str
    noops: int


class EntityState(QueryRow, frozen=True):
    """The order key and the state of an entity."""

    is_terminal: bool
    at: datetime | None
    version: int | None
    event_id: str
    state: str | None


class StoredEntity(QueryRow, frozen=True):
    """A row of the entities table: the state of an entity, and the event that set it."""

    kind: str
    id: str
    state: str | None
    at: str | None
    version: int | None
    is_terminal: bool
    event_id: str
    receipt: int
    updated_at: str
