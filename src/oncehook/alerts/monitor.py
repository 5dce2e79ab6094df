"""The alert monitor: one process at a time, the leader, evaluates the rules. Every process sends notifications.

The leader is a row in the database, and the leader's writes are fenced by the number in that row. An incident and its
notifications are written in one transaction. A constraint allows one open incident per rule and source.

A notification is leased, sent and settled under a fence. Each target gets it at least once, always with the same id. It
is repeated only if a process dies or loses the database between sending and settling. Deliveries never wait for the
monitor.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from oncehook.alerts.message import compose
from oncehook.alerts.rules import (
    BY_NAME,
    RULES,
    Reading,
    enabled_rules,
    evaluate,
    format_value,
    sentence_facts,
    title_of,
)
from oncehook.alerts.settings import AlertSettings
from oncehook.alerts.targets import AlertTarget, make_targets
from oncehook.concurrency.calling import after_failure
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.http_client.client import HttpClient
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.model.incident import Incident, IncidentChanges, LeasedAlert, SettledAlert, TargetLease
from oncehook.model.retry import Retry
from oncehook.model.timestamps import rfc3339
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.providers.expressions import parse_time
from oncehook.providers.source import Source
from oncehook.store.leadership import LeadershipLost
from oncehook.store.store import Store

LEADER = "alerts"
"""The name under which a process becomes the leader that evaluates the rules."""

POLICY = Retry(attempts=40, first=10.0, most=1800.0)
"""Notifications are retried for about half a day."""

MIN_RETRY_DELAY = 10.0
"""The minimum delay in seconds before a notification is retried, whatever the jitter."""

SLOTS = 8
"""The number of notifications that a process sends concurrently."""

MARGIN = 30.0
"""Seconds that a lease outlasts its target's timeout, so that a busy database can still settle it."""

INCIDENT_RETENTION = 90 * 86400.0
"""Seconds for which recovered incidents stay in the database."""

ACK_RETENTION = 3 * 3600.0
"""Seconds for which ack latencies stay in the database. The overview shows the last hour."""

PRUNE_EVERY = 100
"""The number of evaluations after which old incidents, rejection counts and ack latencies are deleted."""

CHART_SECONDS = 7 * 86400.0
"""The time range of the charts. Rejection counts stay at least this long."""

DAY = 86400.0
MAX_SHOWN = 100
FRESH = 5.0
"""Seconds for which measured values are shown again without a new measurement."""


class AlertMonitor:
    """Evaluates the alert rules of an inbox and sends notifications to its targets."""

    def __init__(
        self,
        store: Store,
        settings: AlertSettings,
        sources: Mapping[str, Source],
        http_client: HttpClient,
        *,
        base: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.store = store
        self.settings = settings
        self.sources = sources
        self.base = base
        self.clock = clock
        self.http_client = http_client
        self.targets: dict[str, AlertTarget] = {}
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._latest: tuple[float, list[Reading]] | None = None

    def load_targets(self) -> None:
        """Resolve the targets' addresses and passwords. Raises ConfigurationError, which names the wrong key."""
        self.targets = make_targets(self.settings, self.http_client, self.clock)

    def check(self, removed: Collection[str] = ()) -> None:
        """Raise ConfigurationError for thresholds of an unknown source: a typo would turn its alerts off.

        A source may be a managed one that was `removed`.
        """
        for name in self.settings.sources:
            if name not in self.sources and name not in removed:
                known = ", ".join(sorted(self.sources)) or "none"
                raise ConfigurationError(f"alerts.sources.{name}: there is no such source; the sources are {known}")

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop immediately. Another process, or the next start, sends unsettled notifications again."""
        tasks = [*self._sending] if self._task is None else [self._task, *self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.settings.every)
            try:
                await self.evaluate_rules()
                for alert in await self._lease(SLOTS - len(self._sending)):
                    task = asyncio.create_task(self._send(alert))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)
                reach(Checkpoint.ALERT_RULES_CHECKED)
            except LeadershipLost:
                signals.emit("leadership_lost", task=LEADER)
            except Unavailable as error:
                signals.emit("alerts_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("alerts", error)

    # -- evaluating rules -------------------------------------------------------------------------------------------

    async def evaluate_rules(self) -> IncidentChanges | None:
        """Measure all rules, then open and recover incidents. Returns None if another process is the leader.

        A failed measurement changes nothing: no incident recovers because the database does not answer. Raises
        LeadershipLost, and changes nothing, if this process stalled and another one has become the leader.
        """
        leadership = await self.store.leadership.take(LEADER, self.settings.every * 0.9)
        if leadership is None:
            return None
        readings = await self.readings()
        self._latest = self.clock.monotonic(), readings
        firing = [reading for reading in readings if reading.is_firing]
        changes = await self.store.alerts.record(
            leadership,
            [_row(reading) for reading in firing],
            targets=sorted(self.targets),
            recover_after=self.settings.recover_after,
            remind=self.settings.remind,
        )
        _log_changes(changes)
        if leadership.number % PRUNE_EVERY == 1:
            await self.store.alerts.prune(leadership, INCIDENT_RETENTION, self._longest_horizon() + DAY, ACK_RETENTION)
        return changes

    async def readings(self) -> list[Reading]:
        """Measure every enabled rule now."""
        measured = {
            rule.name: await self.store.alerts.measure(rule.measure, rule.parameters)
            for rule in enabled_rules(self.settings)
        }
        return evaluate(measured, self.settings, self.sources)

    def _longest_horizon(self) -> float:
        return max([CHART_SECONDS, *(source.provider.horizon or 0.0 for source in self.sources.values())])

    # -- sending ----------------------------------------------------------------------------------------------------

    async def send_due(self) -> int:
        """Send all notifications that are due now, and return how many there were."""
        count = 0
        while alerts := await self._lease(SLOTS):
            await asyncio.gather(*map(self._send, alerts))
            count += len(alerts)
        return count

    async def _lease(self, free_slots: int) -> list[LeasedAlert]:
        if free_slots <= 0 or not self.targets:
            return []
        leases = [TargetLease(target.name, target.timeout + MARGIN) for target in self.targets.values()]
        return await self.store.alerts.lease(free_slots, self.name, leases)

    async def _send(self, alert: LeasedAlert) -> None:
        message = compose(alert, self.sources.get(alert.source), self.base)
        settled, fields = SettledAlert(alert.id, alert.lease, "told"), _alert_fields(alert)
        try:
            fields["answer"] = await self.targets[alert.target].send(message)
            event = "alert_sent"
        except Exception as error:
            after, fields["error"] = after_failure(POLICY, alert.attempt, error)
            event = "alert_failed" if after is None else "alert_retrying"
            status = "failed" if after is None else "waiting"
            settled = SettledAlert(alert.id, alert.lease, status, max(after or 0.0, MIN_RETRY_DELAY), fields["error"])
        try:
            if await self.store.alerts.settle(settled):
                signals.emit(event, **fields)
        except Unavailable as error:  # its lease expires, and it is sent again with the same id
            signals.emit("alerts_database_unavailable", detail=error.detail)

    # -- reading ----------------------------------------------------------------------------------------------------

    async def incidents(self) -> list[dict[str, Any]]:
        """Return the open incidents, newest first, with current and worst value, remedy and notifications."""
        incidents = await self.store.alerts.incidents(MAX_SHOWN)
        readings = await self._fresh_readings() if incidents else []
        now = {(reading.rule.name, reading.source): reading.value for reading in readings}
        return [
            incident.as_json() | self._state(incident, now.get((incident.rule, incident.source), 0.0))
            for incident in incidents
        ]

    def _state(self, incident: Incident, now: float) -> dict[str, Any]:
        """Describe an incident. For a rule of another version of Oncehook, only its row is known."""
        rule, name = BY_NAME.get(incident.rule), incident.source
        if rule is None:
            known = {"title": incident.summary, "remedy": "", "page": "/", "closes_at": None}
            return known | {"now": f"{incident.value:g}", "at_worst": f"{incident.worst:g}", "limit": ""}
        worst = max(incident.worst, incident.value, now)
        facts = sentence_facts(rule, name, now, incident.threshold, self.sources.get(name))
        below = None if now > incident.threshold else parse_time(incident.below_at or "")
        return {
            "value": round(now, 3),
            "worst": round(worst, 3),
            "title": title_of(rule, name),
            "now": format_value(rule, now),
            "at_worst": format_value(rule, worst),
            "limit": format_value(rule, incident.threshold),
            "closes_at": None if below is None else rfc3339(below + timedelta(seconds=self.settings.recover_after)),
            "remedy": rule.remedy.format_map(facts),
            "page": rule.page.format_map(facts),
        }

    async def not_opened(self, incidents: list[dict[str, Any]]) -> list[Reading]:
        """Return readings above their threshold without an incident. The next evaluation opens one."""
        known = {(incident["rule"], incident["source"]) for incident in incidents}
        readings = await self._fresh_readings()
        return [
            reading for reading in readings if reading.is_firing and (reading.rule.name, reading.source) not in known
        ]

    async def rule_states(self) -> list[dict[str, Any]]:
        """Return for each rule the reading that is nearest to its threshold, at most a few seconds old."""
        readings = await self._fresh_readings()
        return [_rule_state(rule.name, readings, self.settings) for rule in RULES]

    async def _fresh_readings(self) -> list[Reading]:
        if self._latest is None or self.clock.monotonic() - self._latest[0] >= FRESH:
            self._latest = self.clock.monotonic(), await self.readings()
        return self._latest[1]


def advice(incidents: list[dict[str, Any]]) -> list[str]:
    """Return the remedy of each rule once. With several sources, it says SOURCE instead of a name."""
    remedies: dict[str, str] = {}
    for incident in incidents:
        rule = incident["rule"]
        if rule not in remedies:
            remedies[rule] = incident["remedy"]
        elif rule in BY_NAME:
            remedies[rule] = BY_NAME[rule].remedy.format_map(ANY_SOURCE)
    return [remedy for remedy in remedies.values() if remedy]


ANY_SOURCE = {"source": "SOURCE", "provider": "the provider", "value": "", "threshold": "", "horizon": ""}


def _row(reading: Reading) -> dict[str, Any]:
    return {
        "key": secrets.token_hex(12),
        "rule": reading.rule.name,
        "source": reading.source,
        "value": reading.value,
        "threshold": reading.threshold,
        "summary": reading.summary,
    }


def _log_changes(changes: IncidentChanges) -> None:
    for row in changes.opened:
        fields = {name: getattr(row, name) for name in ("rule", "source", "value", "threshold", "summary")}
        signals.emit("alert_opened", incident=row.id, **fields)
    for ended in changes.recovered:
        seconds = round(ended.seconds, 3)
        signals.emit("alert_recovered", incident=ended.id, rule=ended.rule, source=ended.source, seconds=seconds)


def _alert_fields(alert: LeasedAlert) -> dict[str, Any]:
    names = ("incident", "rule", "source", "target", "word", "attempt")
    return {name: getattr(alert, name) for name in names}


def _rule_state(name: str, readings: list[Reading], settings: AlertSettings) -> dict[str, Any]:
    rule = BY_NAME[name]
    own = [reading for reading in readings if reading.rule is rule]
    worst = max(own, key=lambda reading: reading.value / (reading.threshold or 1.0), default=None)
    thresholds = [getattr(settings.of(source), rule.setting) for source in ("", *settings.sources)]
    return {
        "rule": name,
        "is_on": any(threshold is not None for threshold in thresholds),
        "is_firing": worst is not None and worst.is_firing,
        "unit": rule.unit,
        "source": None if worst is None else worst.source,
        "value": None if worst is None else round(worst.value, 3),
        "threshold": None if worst is None else worst.threshold,
    }
