"""What a worker holds while it works on an event, and what it writes afterwards."""

from datetime import datetime

import msgspec

from oncehook.model.event import EventFacts
from oncehook.model.states import State


class Leased(EventFacts, kw_only=True, frozen=True):
    """A receipt that a worker holds: the event whole, and the fence."""

    type: str
    receipt: int
    lease: int
    attempt: int
    received_at: datetime
    replays: int
    body: bytes | None
    headers: str | None
    serial_key: str | None = None

    @property
    def held(self) -> "Held":
        return self.receipt, self.lease


Held = tuple[int, int]
"""(receipt, lease): what a write must match to count. A lease that was lost matches nothing."""


class Settled(msgspec.Struct):
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
