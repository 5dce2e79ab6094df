"""The rules: what each measures, when that is too much, and what to tell people. Data, and pure.

All of it is what the database knows, so every process comes to the same result, and so does `oncehook alerts`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oncehook.alerts.settings import WINDOW, AlertSettings
from oncehook.model.incident import RuleMeasurement
from oncehook.model.values import as_duration
from oncehook.providers.source import Source

MOST_COUNTED = 100_000
"""Up to how many dead letters are counted, the newest first."""

NEWEST = 10_000
"""Among how many receipts a source that verifies nothing is looked for, the newest first."""

UNHANDLED_SECONDS = 600.0
"""How long events may have no handler: a deploy takes minutes, and `unhandled = "ignore"` acts after five."""

LEAST_REFUSED = 3
"""One stranger at the door is no provider that retries: fewer refusals say nothing about its horizon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that is watched."""

    name: str
    setting: str  # whose threshold holds
    measure: str  # the statement
    sentence: str
    remedy: str
    page: str  # of the dashboard
    unit: str = "number"  # or seconds
    title: str = ""  # what is measured, without a number
    column: str = "value"  # where the statement has it
    given: Mapping[str, Any] = field(default_factory=dict)


RULES = (
    Rule(
        name="dead_letters",
        setting="dead_letters",
        measure="dead_letters",
        sentence="Dead letters of {source}: {value} (limit {threshold}).",
        remedy="See what went wrong with `oncehook dead`, fix it, then `oncehook replay --failed --source {source}`.",
        page="/dead",
        title="Dead letters of {source}",
        column="number",
        given={"most": MOST_COUNTED},
    ),
    Rule(
        name="lag",
        setting="lag",
        measure="unfinished",
        sentence="The oldest unfinished event of {source} is {value} old (limit {threshold}).",
        remedy="See `oncehook stats`: is a worker running, and does a handler hang or fail? `oncehook events --source "
        "{source} --status processing` lists what workers hold, `--status retrying` what failed.",
        page="/events?source={source}",
        unit="seconds",
        title="Oldest unfinished event of {source}",
    ),
    Rule(
        name="unhandled",
        setting="unhandled",
        measure="unhandled_for",
        sentence="Events of {source} without a handler in any process: {value} (limit {threshold}).",
        remedy="See `oncehook events --unhandled --source {source}`. Start the process that handles them, leave their "
        'types out with `types`, or set `unhandled = "ignore"` on the source.',
        page="/events?status=unhandled&source={source}",
        title="Events of {source} without a handler anywhere",
        given={"seconds": UNHANDLED_SECONDS},
    ),
    Rule(
        name="paused",
        setting="paused",
        measure="paused_for",
        sentence="{source} has been paused for {value} (limit {threshold}): its events are accepted and wait.",
        remedy="`oncehook resume {source}` continues it.",
        page="/sources",
        unit="seconds",
        title="{source} is paused",
    ),
    Rule(
        name="rejections",
        setting="rejections",
        measure="refused",
        sentence="Rejected deliveries to {source} within 5 minutes: {value} (limit {threshold}).",
        remedy="See why with `oncehook doctor signature {source}`.",
        page="/sources",
        title="Rejected deliveries to {source} within 5 minutes",
        given={"seconds": WINDOW},
    ),
    Rule(
        name="silent",
        setting="silent",
        measure="silences",
        sentence="{source} has received no authentic delivery for {value} (limit {threshold}).",
        remedy="See whether {provider} still has the webhook and shows failed deliveries, and whether its address "
        "leads here: `oncehook doctor`.",
        page="/sources",
        unit="seconds",
        title="No authentic delivery to {source}",
        given={"most": NEWEST},
    ),
    Rule(
        name="effects",
        setting="effects",
        measure="sources_of_failed_effects",
        sentence="Failed effects of {source}'s events: {value} (limit {threshold}).",
        remedy="See `oncehook effects --status failed --source {source}`, fix it, then `oncehook effects "
        "replay --failed`.",
        page="/effects?status=failed&source={source}",
        title="Failed effects of {source}'s events",
    ),
    Rule(
        name="refusing",
        setting="retries",
        measure="refusing",
        sentence="Every delivery to {source} has been rejected for {value}. {provider} stops retrying after {horizon}, "
        "and the events that it gives up are lost.",
        remedy="See why with `oncehook doctor signature {source}`, and fix it before then.",
        page="/sources",
        unit="seconds",
        title="Every delivery to {source} is rejected",
    ),
    Rule(
        name="failing",
        setting="retries",
        measure="inline_failing",
        sentence="An inline event of {source} has failed at every delivery for {value}. {provider} stops retrying "
        "after {horizon}, and then it is a dead letter.",
        remedy="See `oncehook events --source {source} --status retrying`, and fix its handler before then.",
        page="/events?status=retrying&source={source}",
        unit="seconds",
        title="An inline event of {source} keeps failing",
    ),
)
"""docs/alerts.md is made of this table."""

BY_NAME = {rule.name: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule has measured of a source, and from where on it is too much."""

    rule: Rule
    source: str
    value: float
    threshold: float
    facts: Mapping[str, str]

    @property
    def is_firing(self) -> bool:
        return self.value > self.threshold

    @property
    def summary(self) -> str:
        return self.rule.sentence.format_map(self.facts)

    @property
    def remedy(self) -> str:
        return self.rule.remedy.format_map(self.facts)


def wanted(settings: AlertSettings) -> list[Rule]:
    """The rules that watch at least one source."""
    every = [settings.of(name) for name in ("", *settings.sources)]
    return [rule for rule in RULES if any(getattr(one, rule.setting) is not None for one in every)]


def judge(
    measured: Mapping[str, Iterable[RuleMeasurement]], settings: AlertSettings, sources: Mapping[str, Source]
) -> list[Reading]:
    """What was measured, by rule, against what holds for each source; a source that nobody watches is left out."""
    found = []
    for rule in RULES:
        for row in measured.get(rule.name, ()):
            threshold = _threshold(rule, row, settings, sources.get(row.source))
            if threshold is not None:
                value = max(0.0, float(getattr(row, rule.column)))
                facts = facts_of(rule, row.source, value, threshold, sources.get(row.source))
                found.append(Reading(rule, row.source, value, threshold, facts))
    return found


def _threshold(rule: Rule, row: RuleMeasurement, settings: AlertSettings, source: Source | None) -> float | None:
    threshold: float | None = getattr(settings.of(row.source), rule.setting)
    if rule.name in ("silent", "rejections") and source is None:  # it is not expected to speak, or never was there
        return None
    if row.is_paused:  # its events wait because a person wants them to; the rule `paused` watches that
        return None
    if rule.setting != "retries" or threshold is None:
        return None if threshold is None else float(threshold)
    if source is None or source.provider.horizon is None:  # nobody knows when it stops
        return None
    if rule.name == "refusing" and not _is_refusing(row, source):
        return None
    return source.provider.horizon * threshold / 100


def _is_refusing(row: RuleMeasurement, source: Source) -> bool:
    """Whether it looks like the provider's own deliveries: several, and still coming."""
    horizon = source.provider.horizon or 0.0
    return source.is_verified and row.number >= LEAST_REFUSED and row.last <= horizon / 4


def facts_of(rule: Rule, name: str, value: float, threshold: float, source: Source | None) -> dict[str, str]:
    """What a sentence is filled with."""
    provider, horizon = ("its provider", None) if source is None else (_title(source), source.provider.horizon)
    return {
        "source": name,
        "value": told(rule, value),
        "threshold": told(rule, threshold),
        "provider": provider,
        "horizon": "?" if horizon is None else as_duration(horizon),
    }


def title_of(rule: Rule, source: str) -> str:
    """What a rule measures of a source, without a number."""
    return rule.title.format_map({"source": source}) if rule.title else f"{rule.name} of {source}"


def _title(source: Source) -> str:
    return source.provider.title or source.provider_name


def told(rule: Rule, value: float) -> str:
    """A number, or a duration in its two largest units."""
    return lasted(value) if rule.unit == "seconds" else f"{value:,.0f}"


def lasted(seconds: float) -> str:
    """A duration for people: 45s, 12m, 3h 20m, 2d 4h."""
    whole = max(0, round(seconds))
    parts = [(whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s")]
    first = next((number for number, (size, _) in enumerate(parts) if size), 3)
    return " ".join(f"{size}{unit}" for size, unit in parts[first : first + 2] if size) or "0s"
