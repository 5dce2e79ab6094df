"""Sources, their secrets, rejections and pauses in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.model.values import LONGEST


class Finding(Struct):
    """A cause of a rejection, its evidence, and how to fix it."""

    cause: str
    shows: str
    remedy: str


class RejectedDelivery(Struct):
    """A rejected delivery and the doctor's findings. There are none if no sample of it was stored."""

    at: str
    reason: str
    detail: str
    findings: list[Finding]


class SecretUse(Struct):
    """When a secret last verified a delivery.

    `secret` is its index in the configuration, null if it was removed. `mark` is a short fingerprint.
    """

    secret: int | None
    mark: str
    verified: int
    last_used_at: str | None
    advice: str


class Pause(Struct):
    """When a source was paused, who paused it, why, and when the pause ends."""

    at: str
    actor: str
    reason: str | None = None
    until: str | None = None


class PauseRequest(Struct):
    """The reason for a pause and its length. Without `seconds`, it lasts until the source is resumed."""

    reason: Annotated[str, Meta(max_length=500)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)] | None = None


class PauseState(Struct):
    """Whether a source is paused now."""

    source: str
    paused: bool


class ForwardState(Struct):
    """The target of a source with `forward`. `circuit` is the circuit breaker that this process has for it."""

    origin: str
    circuit: Literal["closed", "open", "half-open"]


class SourceState(Struct):
    """A source: its URL, its settings and its current state.

    `is_managed` tells whether it is in the database and can be changed here. `tenants` tells how its tenants are found.
    `last_refused` is the latest rejection that this process knows. `last_examined` is the latest one with findings of
    the doctor, if it had a different reason.
    """

    source: str
    provider: str
    address: str
    is_verified: bool
    secrets: int
    mode: str
    types: list[str] | None
    where: dict[str, Any] | None
    dedupe_window: str
    payload_retention: str
    waiting: int
    unhandled: int
    dead_letters: int
    lag_seconds: float
    oldest_unfinished_seconds: float
    last_received_at: str | None
    last_refused: RejectedDelivery | None
    last_examined: RejectedDelivery | None
    support: Literal["confirmed", "unconfirmed"]
    secrets_used: list[SecretUse]
    paused: Pause | None
    forward: ForwardState | None
    is_managed: bool
    tenants: Literal["managed", "lookup"] | None


class Sources(Struct):
    """Every configured source."""

    sources: list[SourceState]
