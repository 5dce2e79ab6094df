"""An incident, and what a target is told of it: the values that go between rules, targets and the store."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """Whom this process can tell, each leased for so many seconds."""

    target: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LeasedAlert:
    """What one target is to be told of an incident, held under a lease, and the fence."""

    id: int
    lease: int
    attempt: int
    target: str
    word: str  # opened, reminder or recovered
    number: int  # of the reminder
    incident: int
    key: str  # of the incident, random: ids of two inboxes never meet at a target
    rule: str
    source: str
    value: float
    worst: float
    threshold: float
    summary: str
    opened_at: str
    recovered_at: str | None


@dataclass(frozen=True, slots=True)
class SettledAlert:
    """What came of telling a target, as the store writes it: `told`, `waiting` for the next attempt, or `failed`."""

    id: int
    lease: int
    status: str
    after: float = 0.0
    error: str | None = None
