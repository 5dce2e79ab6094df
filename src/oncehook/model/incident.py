"""An incident, and what a target is told of it: the values that go between rules, targets and the store."""

from dataclasses import dataclass

from oncehook.model.rows import QueryRow


@dataclass(frozen=True, slots=True)
class TargetLease:
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


class RuleMeasurement(QueryRow, frozen=True):
    """What a rule's statement measures. Each statement has some of these columns."""

    source: str = ""
    value: int | float = 0
    number: int = 0
    last: float = 0
    bucket: int = 0
    is_paused: bool = False


class OpenedIncident(QueryRow, frozen=True):
    """An incident that a turn opened."""

    id: int
    rule: str
    source: str
    value: float
    threshold: float
    summary: str


class RecoveredIncident(QueryRow, frozen=True):
    """An incident that a turn closed."""

    id: int
    rule: str
    source: str
    seconds: float  # how long it was open


class IncidentChanges(QueryRow, frozen=True):
    """What a turn opened and closed."""

    opened: list[OpenedIncident]
    recovered: list[RecoveredIncident]


class SentAlert(QueryRow, frozen=True):
    """What one target was told of an incident."""

    target: str
    word: str
    status: str
    attempts: int
    told_at: str | None
    last_error: str | None


class Incident(QueryRow, frozen=True):
    """An open incident."""

    incident: int
    rule: str
    source: str
    opened_at: str
    value: float
    worst: float
    threshold: float
    summary: str
    below_at: str | None
    alerts: tuple[SentAlert, ...] = ()
