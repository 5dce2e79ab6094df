"""Incidents and alert rules in responses."""

from typing import Literal

from msgspec import Struct


class AlertState(Struct):
    """A notification about an incident to one target."""

    target: str
    word: Literal["opened", "reminder", "recovered"]
    status: Literal["waiting", "sending", "told", "failed"]
    attempts: int
    told_at: str | None
    last_error: str | None


class Incident(Struct):
    """An open incident, with the current and the worst value of its rule.

    `below_at` is when the value fell below the threshold; `closes_at` is when the incident closes if the value stays
    below. `now`, `at_worst` and `limit` are `value`, `worst` and `threshold` as text. `summary` is the text of the
    first notification.
    """

    incident: int
    rule: str
    source: str
    opened_at: str
    title: str
    value: float
    worst: float
    threshold: float
    now: str
    at_worst: str
    limit: str
    summary: str
    remedy: str
    page: str
    below_at: str | None
    closes_at: str | None
    alerts: list[AlertState]


class RuleState(Struct):
    """The current value of a rule, for the source that is closest to the threshold."""

    rule: str
    is_on: bool
    is_firing: bool
    unit: Literal["number", "seconds"]
    source: str | None
    value: float | None
    threshold: float | None


class AlertsState(Struct):
    """The open incidents, newest first, and every alert rule."""

    incidents: list[Incident]
    rules: list[RuleState]
