"""Effects: their states, what a relay holds, and what it writes afterwards."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec


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
