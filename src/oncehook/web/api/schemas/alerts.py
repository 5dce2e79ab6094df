"""Incidents and alert rules in responses."""

from typing import Literal

from msgspec import Struct


class AlertState(Struct):
    """What one target was told of an incident, or is to be."""

    target: str
    word: Literal["opened", "reminder", "recovered"]
    status: Literal["waiting", "sending", "told", "failed"]
    attempts: int
    told_at: str | None
    last_error: str | None


class Incident(Struct):
    """Something that is wrong: the value now and at worst, and since when.

    `below_at` is since when it is below its threshold again, and `closes_at` when it closes if it stays so. `now`,
    `at_worst` and `limit` are `value`, `worst` and `threshold` as text; `summary` is what was told when it opened.
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
    """What a rule measures now, of the source that is nearest to its threshold."""

    rule: str
    is_on: bool
    is_firing: bool
    unit: Literal["number", "seconds"]
    source: str | None
    value: float | None
    threshold: float | None


class AlertsState(Struct):
    """The open incidents, newest first, and every rule."""

    incidents: list[Incident]
    rules: list[RuleState]
