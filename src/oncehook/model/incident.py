"""Incidents and their notifications: the values that rules, alert targets and the store exchange."""

from dataclasses import dataclass

from oncehook.model.event import MAIN
from oncehook.model.rows import QueryRow


@dataclass(frozen=True, slots=True)
class TargetLease:
    """An alert target that this process can notify, and for how many seconds to lease its notifications."""

    target: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LeasedAlert:
    """A leased notification: one message about an incident for one target. `lease` is the fencing counter."""

    id: int
    lease: int
    attempt: int
    target: str
    word: str  # opened, reminder or recovered
    number: int  # the number of the reminder
    incident: int
    key: str  # a random key of the incident, so that two inboxes never use the same id at a target
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
    """The result of a notification, which the store writes: `told`, `waiting` for a retry, or `failed`."""

    id: int
    lease: int
    status: str
    after: float = 0.0
    error: str | None = None


class RuleMeasurement(QueryRow, frozen=True):
    """A row of a rule's query. Each query returns some of these columns."""

    source: str = ""
    consumer: str = MAIN
    value: int | float = 0
    number: int = 0
    last: float = 0
    bucket: int = 0
    is_paused: bool = False


class OpenedIncident(QueryRow, frozen=True):
    """An incident that the alert monitor has just opened."""

    id: int
    rule: str
    source: str
    value: float
    threshold: float
    summary: str


class RecoveredIncident(QueryRow, frozen=True):
    """An incident that the alert monitor has just closed."""

    id: int
    rule: str
    source: str
    seconds: float  # how long it was open


class IncidentChanges(QueryRow, frozen=True):
    """The incidents that one check of the rules opened and closed."""

    opened: list[OpenedIncident]
    recovered: list[RecoveredIncident]


class SentAlert(QueryRow, frozen=True):
    """A notification of an incident to one target."""

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
