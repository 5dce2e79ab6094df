"""The alert rules as data: what each one measures, its threshold, and the texts of its alerts. No side effects.

Rules measure only values in the database, so every process and `oncehook alerts` get the same result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from oncehook.alerts.settings import WINDOW, AlertSettings
from oncehook.model.event import MAIN
from oncehook.model.incident import RuleMeasurement
from oncehook.model.values import as_duration
from oncehook.providers.source import Source

MAX_COUNTED = 100_000
"""The rule counts up to this many dead letters, the newest first."""

NEWEST = 10_000
"""How many of the newest receipts are searched for the last one of an unverified source."""

UNHANDLED_SECONDS = 600.0
"""Seconds without a handler before events count. A deploy takes minutes; `unhandled = "ignore"` acts after five."""

MIN_REJECTIONS = 3
"""Fewer rejections may come from a stranger, and do not show that the provider is retrying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert rule."""

    name: str
    setting: str  # the setting with its threshold
    measure: str  # the SQL statement
    sentence: str
    remedy: str
    page: str  # the page of the dashboard
    unit: str = "number"  # or seconds
    title: str = ""  # the measured quantity, without a value
    column: str = "value"  # the column with the value
    parameters: Mapping[str, Any] = field(default_factory=dict)


RULES = (
    Rule(
        name="dead_letters",
        setting="dead_letters",
        measure="dead_letter_counts",
        sentence="{source} has dead letters: {value} (threshold {threshold}).",
        remedy="Run `oncehook dead` to see the errors. Fix the cause, then run `oncehook replay --failed --source "
        "{source}`.",
        page="/dead",
        title="Dead letters of {source}",
        column="number",
        parameters={"most": MAX_COUNTED},
    ),
    Rule(
        name="lag",
        setting="lag",
        measure="oldest_unfinished",
        sentence="The oldest unfinished event of {source} is {value} old (threshold {threshold}).",
        remedy="Run `oncehook stats` to check that a worker is running. Then list the events of slow handlers with "
        "`oncehook events --source {source} --status processing`, and failed attempts with `--status retrying`.",
        page="/events?source={source}",
        unit="seconds",
        title="Oldest unfinished event of {source}",
    ),
    Rule(
        name="unhandled",
        setting="unhandled",
        measure="unhandled_counts",
        sentence="Events of {source} without a handler in any process: {value} (threshold {threshold}).",
        remedy="List them with `oncehook events --unhandled --source {source}`. Start the process that handles them, "
        'exclude their types with `types`, or set `unhandled = "ignore"` on the source.',
        page="/events?status=unhandled&source={source}",
        title="Events of {source} without a handler anywhere",
        parameters={"seconds": UNHANDLED_SECONDS},
    ),
    Rule(
        name="paused",
        setting="paused",
        measure="pause_ages",
        sentence="{source} has been paused for {value} (threshold {threshold}). Its events are accepted and wait.",
        remedy="Run `oncehook resume {source}` to process them.",
        page="/sources",
        unit="seconds",
        title="{source} is paused",
    ),
    Rule(
        name="paused_consumer",
        setting="paused",
        measure="consumer_pause_ages",
        sentence="The consumer {source} has been paused for {value} (threshold {threshold}). Its receipts wait.",
        remedy="Run `oncehook resume --consumer {source}` to process them.",
        page="/consumers",
        unit="seconds",
        title="The consumer {source} is paused",
    ),
    Rule(
        name="rejections",
        setting="rejections",
        measure="rejection_counts",
        sentence="Rejected deliveries to {source} in the last 5 minutes: {value} (threshold {threshold}).",
        remedy="Run `oncehook doctor signature {source}` to see why.",
        page="/sources",
        title="Rejected deliveries to {source} in the last 5 minutes",
        parameters={"seconds": WINDOW},
    ),
    Rule(
        name="silent",
        setting="silent",
        measure="silent_sources",
        sentence="{source} has received no authentic delivery for {value} (threshold {threshold}).",
        remedy="Check in the settings of {provider} that the webhook still exists and has no failed deliveries. Run "
        "`oncehook doctor` to check that its address leads here.",
        page="/sources",
        unit="seconds",
        title="No authentic delivery to {source}",
        parameters={"most": NEWEST},
    ),
    Rule(
        name="effects",
        setting="effects",
        measure="failed_effect_counts",
        sentence="{source} has failed effects: {value} (threshold {threshold}).",
        remedy="List them with `oncehook effects --status failed --source {source}`. Fix the cause, then run "
        "`oncehook effects replay --failed`.",
        page="/effects?status=failed&source={source}",
        title="Failed effects of {source}",
    ),
    Rule(
        name="refusing",
        setting="retries",
        measure="rejecting_sources",
        sentence="Every delivery to {source} has been rejected for {value}. {provider} stops retrying after {horizon}. "
        "The rejected events are then lost.",
        remedy="Run `oncehook doctor signature {source}` to see why, and fix the cause before then.",
        page="/sources",
        unit="seconds",
        title="Every delivery to {source} is rejected",
    ),
    Rule(
        name="failing",
        setting="retries",
        measure="failing_inline",
        sentence="An inline event of {source} has failed at every delivery for {value}. {provider} stops retrying "
        "after {horizon}. The event then becomes a dead letter.",
        remedy="Find it with `oncehook events --source {source} --status retrying`, and fix its handler before then.",
        page="/events?status=retrying&source={source}",
        unit="seconds",
        title="An inline event of {source} keeps failing",
    ),
)
"""docs/alerts.md is generated from this table."""

BY_NAME = {rule.name: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Reading:
    """The value that a rule measured for a source, and the threshold of that source."""

    rule: Rule
    source: str
    value: float
    threshold: float
    facts: Mapping[str, str]
    consumer: str = MAIN  # of the worst value

    @property
    def is_firing(self) -> bool:
        return self.value > self.threshold

    @property
    def summary(self) -> str:
        sentence = self.rule.sentence.format_map(self.facts)
        return sentence if self.consumer == MAIN else f"{sentence} The consumer is {self.consumer}."

    @property
    def remedy(self) -> str:
        return self.rule.remedy.format_map(self.facts)


def enabled_rules(settings: AlertSettings) -> list[Rule]:
    """Return the rules that are on for at least one source."""
    thresholds = [settings.of(name) for name in ("", *settings.sources)]
    return [rule for rule in RULES if any(getattr(each, rule.setting) is not None for each in thresholds)]


def evaluate(
    measured: Mapping[str, Iterable[RuleMeasurement]], settings: AlertSettings, sources: Mapping[str, Source]
) -> list[Reading]:
    """Compare the measured values with the thresholds of their sources. Sources without a threshold are left out."""
    readings = []
    for rule in RULES:
        for row in _by_source(rule, measured.get(rule.name, ())):
            threshold = _threshold(rule, row, settings, sources.get(row.source))
            if threshold is not None:
                value = max(0.0, float(getattr(row, rule.column)))
                facts = sentence_facts(rule, row.source, value, threshold, sources.get(row.source))
                readings.append(Reading(rule, row.source, value, threshold, facts, consumer=row.consumer))
    return readings


def _by_source(rule: Rule, rows: Iterable[RuleMeasurement]) -> list[RuleMeasurement]:
    """Combine the rows of a source's consumers: numbers are added up, and of times the longest counts.

    Consumers that wait because of a pause count only if no other consumer of the source has a row.
    """
    sources: dict[str, list[RuleMeasurement]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append(row)
    combined = []
    for group in sources.values():
        counted = [row for row in group if not row.is_paused] or group
        worst = max(counted, key=lambda row: float(getattr(row, rule.column)))
        if rule.unit == "number" and len(counted) > 1:
            total = sum(getattr(row, rule.column) for row in counted)
            worst = msgspec.structs.replace(worst, consumer=MAIN, **{rule.column: total})
        combined.append(worst)
    return combined


def _threshold(rule: Rule, row: RuleMeasurement, settings: AlertSettings, source: Source | None) -> float | None:
    threshold: float | None = getattr(settings.of(row.source), rule.setting)
    if rule.name in ("silent", "rejections") and source is None:  # the source is no longer configured, or never was
        return None
    if row.is_paused:  # a person wants its events to wait; the rule `paused` covers that
        return None
    if rule.setting != "retries" or threshold is None:
        return None if threshold is None else float(threshold)
    if source is None or source.provider.horizon is None:  # the provider does not document when it stops retrying
        return None
    if rule.name == "refusing" and not _looks_like_retries(row, source):
        return None
    return source.provider.horizon * threshold / 100


def _looks_like_retries(row: RuleMeasurement, source: Source) -> bool:
    """Return whether the rejections look like a retrying provider: several of them, and still arriving."""
    horizon = source.provider.horizon or 0.0
    return source.is_verified and row.number >= MIN_REJECTIONS and row.last <= horizon / 4


def sentence_facts(rule: Rule, name: str, value: float, threshold: float, source: Source | None) -> dict[str, str]:
    """Return the values for the placeholders of a rule's texts."""
    provider, horizon = ("its provider", None) if source is None else (_provider_title(source), source.provider.horizon)
    return {
        "source": name,
        "value": format_value(rule, value),
        "threshold": format_value(rule, threshold),
        "provider": provider,
        "horizon": "?" if horizon is None else as_duration(horizon),
    }


def title_of(rule: Rule, source: str) -> str:
    """Return what a rule measures for a source, without the value."""
    return rule.title.format_map({"source": source}) if rule.title else f"{rule.name} ({source})"


def _provider_title(source: Source) -> str:
    return source.provider.title or source.provider_name


def format_value(rule: Rule, value: float) -> str:
    """Format a value as a number, or as a duration in its two largest units."""
    return format_duration(value) if rule.unit == "seconds" else f"{value:,.0f}"


def format_duration(seconds: float) -> str:
    """Format a duration: 45s, 12m, 3h 20m, 2d 4h."""
    whole = max(0, round(seconds))
    parts = [(whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s")]
    first = next((number for number, (size, _) in enumerate(parts) if size), 3)
    return " ".join(f"{size}{unit}" for size, unit in parts[first : first + 2] if size) or "0s"
