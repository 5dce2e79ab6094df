"""A leased receipt, and the result that a worker writes to settle it."""

import secrets
from datetime import datetime

import msgspec

from oncehook.model.errors import OncehookError
from oncehook.model.event import ConsumerFacts
from oncehook.model.states import State


class Leased(ConsumerFacts, kw_only=True, frozen=True):
    """A receipt that a worker has leased, with its payload. `lease` is the fencing counter."""

    type: str
    receipt: int
    lease: int
    attempt: int
    received_at: datetime
    replays: int
    body: bytes | None
    headers: str | None
    object: str | None  # the address of the payload object that has the body; `body` is then empty
    serial_key: str | None = None
    is_encrypted: bool = False  # its payload is encrypted at rest, so its error texts and effects must be too
    payload_error: OncehookError | None = None  # why the payload could not be read; body and headers are None

    @property
    def lease_key(self) -> "LeaseKey":
        return self.receipt, self.lease


def first_lease() -> int:
    """Return the fencing counter of a new receipt that is leased at once. Random, as the statements that lease have it:
    after a failover, another receipt may get the same id."""
    return 1 + secrets.randbits(32)


LeaseKey = tuple[int, int]
"""(receipt, fencing counter). A write counts only if both match, so a worker that lost its lease writes nothing."""


class Settled(msgspec.Struct):
    """The result of an attempt, which the store writes: the receipt's new status and a row of its history."""

    receipt: int
    lease: int
    status: State
    outcome: str
    after: float | None = None  # seconds until the next attempt
    error: str | None = None
    traceback: str | None = None
    handler: str | None = None
    version: str | None = None
    seconds: float | None = None  # how long the attempt took; None: since the lease began
    crashed: bool = False
