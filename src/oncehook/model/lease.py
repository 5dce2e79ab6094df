"""What a worker holds while it works on an event, and what it writes afterwards."""

from dataclasses import dataclass
from datetime import datetime

from oncehook.model.states import State


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
