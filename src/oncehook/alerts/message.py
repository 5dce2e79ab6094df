"""The message of a notification, as JSON and as text."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from oncehook.alerts.rules import BY_NAME, format_duration, format_value, sentence_facts
from oncehook.model.incident import LeasedAlert
from oncehook.providers.expressions import parse_time
from oncehook.providers.source import Source

TITLES = {"opened": "Alert", "reminder": "Still open", "recovered": "Recovered", "test": "Test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One notification. Its `id` is unique and the same at every attempt, so a target can recognize duplicates."""

    id: str
    word: str  # opened, reminder, recovered or test
    rule: str
    source: str
    summary: str
    remedy: str
    at: str
    value: float | None = None
    threshold: float | None = None
    incident: int | None = None
    opened_at: str | None = None
    recovered_at: str | None = None
    link: str | None = None

    @property
    def title(self) -> str:
        subject = f"{self.rule} ({self.source})" if self.source else self.rule
        return f"{TITLES[self.word]}: {subject}"

    @property
    def text(self) -> str:
        return "\n".join(part for part in (f"{self.title}. {self.summary}", self.remedy, self.link) if part)

    def as_json(self) -> bytes:
        """Encode the message in the shape that Standard Webhooks recommends."""
        names = (
            "word",
            "incident",
            "rule",
            "source",
            "summary",
            "remedy",
            "value",
            "threshold",
            "opened_at",
            "recovered_at",
            "link",
        )
        data: dict[str, Any] = {"id": self.id} | {name: getattr(self, name) for name in names}
        return msgspec.json.encode({"type": f"alert.{self.word}", "timestamp": self.at, "data": data})


def compose(alert: LeasedAlert, source: Source | None, base: str | None) -> Message:
    """Compose the message of a notification. `base` is the dashboard's URL, if it is known."""
    rule = BY_NAME.get(alert.rule)
    facts = {} if rule is None else sentence_facts(rule, alert.source, alert.value, alert.threshold, source)
    summary, is_over = alert.summary, alert.word == "recovered"
    if is_over and alert.recovered_at is not None:
        seconds = (time_of(alert.recovered_at) - time_of(alert.opened_at)).total_seconds()
        worst = "" if rule is None else f" Worst value: {format_value(rule, max(alert.worst, alert.value))}."
        summary = f"Recovered after {format_duration(seconds)}.{worst} The alert was: {alert.summary}"
    elif alert.word == "reminder" and rule is not None:
        summary = rule.sentence.format_map(facts)
    return Message(
        id=f"{alert.key}-{alert.word}{alert.number or ''}",
        word=alert.word,
        rule=alert.rule,
        source=alert.source,
        summary=summary,
        remedy="" if is_over or rule is None else rule.remedy.format_map(facts),
        at=(alert.recovered_at if is_over else None) or alert.opened_at,
        value=alert.value,
        threshold=alert.threshold,
        incident=alert.incident,
        opened_at=alert.opened_at,
        recovered_at=alert.recovered_at if is_over else None,
        link=f"{base}{rule.page.format_map(facts)}" if base and rule is not None else None,
    )


def make_test_message(id: str, at: str) -> Message:
    """Make the message that `oncehook alerts test` sends."""
    return Message(
        id=id,
        word="test",
        rule="test",
        source="",
        summary="This is a test. Alerts of this inbox will arrive here.",
        remedy="",
        at=at,
    )


def time_of(text: str) -> datetime:
    time = parse_time(text)
    assert time is not None
    return time
