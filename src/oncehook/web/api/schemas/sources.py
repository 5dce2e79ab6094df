"""Sources, their secrets, refusals and pauses in requests and responses."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from oncehook.model.values import LONGEST


class Finding(Struct):
    """A cause, what shows it, and what to do."""

    cause: str
    shows: str
    remedy: str


class Refused(Struct):
    """A delivery that was refused, and the doctor's word on it; none where no sample of it was kept."""

    at: str
    reason: str
    detail: str
    findings: list[Finding]


class SecretUse(Struct):
    """A secret, by its place in the configuration and a short mark: when it last verified a delivery.

    The place is null for one that is not configured any more.
    """

    secret: int | None
    mark: str
    verified: int
    last_used_at: str | None
    advice: str


class Pause(Struct):
    """Since when a source is paused, who paused it, why, and when it is resumed by itself."""

    at: str
    actor: str
    reason: str | None = None
    until: str | None = None


class PauseFor(Struct):
    """Why a source is paused, and for how long; without `seconds`, until somebody resumes it."""

    reason: Annotated[str, Meta(max_length=500)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)] | None = None


class Paused(Struct):
    """Whether a source is paused now."""

    source: str
    paused: bool


class SourceState(Struct):
    """A source: where it is, and how it has been doing. Refusals are those of the process that answers.

    `last_examined` is the last refusal with the doctor's word, where the very last one was refused for another reason.
    """

    source: str
    provider: str
    address: str
    is_verified: bool
    secrets: int
    mode: str
    types: list[str] | None
    dedupe_window: str
    payload_retention: str
    waiting: int
    unhandled: int
    dead_letters: int
    lag_seconds: float
    oldest_unfinished_seconds: float
    last_received_at: str | None
    last_refused: Refused | None
    last_examined: Refused | None
    support: Literal["confirmed", "unconfirmed"]
    secrets_used: list[SecretUse]
    paused: Pause | None


class Sources(Struct):
    """Every configured source."""

    sources: list[SourceState]
