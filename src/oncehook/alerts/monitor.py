"""Watching: one process at a time measures, opens incidents and recovers them; any process tells the targets.

Who has the turn is a row in the database, and what a turn writes is fenced by its number. An incident and what is to be
told of it are one transaction; at most one incident of a rule and source is open, by a constraint. An alert is leased,
sent and marked under a fence: at least once to each target, always with the same id, and once unless a process dies, or
is cut off, between sending and marking. Nothing here is on the way of a delivery.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from oncehook.alerts.message import compose
from oncehook.alerts.rules import BY_NAME, RULES, Reading, facts_of, judge, title_of, told, wanted
from oncehook.alerts.settings import AlertSettings
from oncehook.alerts.targets import Target, make_targets
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
from oncehook.store.store import Store

TURN = "alerts"
POLICY = Retry(attempts=40, first=10.0, most=1800.0)
"""A target may be down for half a day."""

LEAST_PAUSE = 10.0
"""Seconds before a target that has just failed is tried again, whatever the policy's dice say."""

PLACES = 8
"""How many alerts a process sends at once."""

MARGIN = 30.0
"""How much longer than its target may take an alert is leased: for the mark, on a busy day."""

KEPT = 90 * 86400.0
"""Seconds for which incidents that are over are kept."""

ACKS_KEPT = 3 * 3600.0
"""Seconds for which latencies are kept: the overview shows those of the last hour."""

PRUNE_EVERY = 100  # turns
CHARTED = 7 * 86400.0
"""Seconds that the charts go back: rejections are kept for longer."""

DAY = 86400.0
MOST_SHOWN = 100
FRESH = 5.0


class Alerts:
    """Watches an inbox, and tells the targets of its configuration."""

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
        self.targets: dict[str, Target] = {}
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._task: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._standing: tuple[float, list[Reading]] | None = None

    def load_targets(self) -> None:
        """Resolve the targets' addresses and passwords. Raises ConfigurationError, which names the place."""
        self.targets = make_targets(self.settings, self.http_client, self.clock)

    def check(self) -> None:
        """Refuse thresholds for a source that is not there: a typing error would watch nothing."""
        for name in self.settings.sources:
            if name not in self.sources:
                known = ", ".join(sorted(self.sources)) or "none"
                raise ConfigurationError(f"alerts.sources.{name} is for a source that is not there: known are {known}")

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_watching())

    async def stop(self) -> None:
        """Stop at once: what is being sent is sent again by another process, or after the next start."""
        tasks = [*self._telling] if self._task is None else [self._task, *self._telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    async def _keep_watching(self) -> None:
        while True:
            await asyncio.sleep(self.settings.every)
            try:
                await self.turn()
                for alert in await self._lease(PLACES - len(self._telling)):
                    task = asyncio.create_task(self._tell(alert))
                    self._telling.add(task)
                    task.add_done_callback(self._telling.discard)
                reach(Checkpoint.ALERT_RULES_CHECKED)
            except Unavailable as error:
                signals.emit("alerts_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("alerts", error)

    # -- measuring --------------------------------------------------------------------------------------------------

    async def turn(self) -> IncidentChanges | None:
        """Measure, and write down what began and what is over; None if it is another process's turn.

        A measure that cannot be taken changes nothing: no incident recovers because the database does not answer.
        """
        number = await self.store.alerts.take_turn(TURN, self.settings.every * 0.9)
        if number is None:
            return None
        readings = await self.readings()
        self._standing = self.clock.monotonic(), readings
        firing = [reading for reading in readings if reading.is_firing]
        done = await self.store.alerts.record(
            (TURN, number),
            [_row(reading) for reading in firing],
            targets=sorted(self.targets),
            recover_after=self.settings.recover_after,
            remind=self.settings.remind,
        )
        if done is not None:
            _log(done)
        if number % PRUNE_EVERY == 1:
            await self.store.alerts.prune(KEPT, self._longest_horizon() + DAY, ACKS_KEPT)
        return done

    async def readings(self) -> list[Reading]:
        """What every rule measures now."""
        measured = {
            rule.name: await self.store.alerts.measure(rule.measure, rule.given) for rule in wanted(self.settings)
        }
        return judge(measured, self.settings, self.sources)

    def _longest_horizon(self) -> float:
        return max([CHARTED, *(source.provider.horizon or 0.0 for source in self.sources.values())])

    # -- telling ----------------------------------------------------------------------------------------------------

    async def tell(self) -> int:
        """Tell what is due now, and return when nothing of it is left; how many alerts were sent."""
        sent = 0
        while alerts := await self._lease(PLACES):
            await asyncio.gather(*map(self._tell, alerts))
            sent += len(alerts)
        return sent

    async def _lease(self, room: int) -> list[LeasedAlert]:
        if room <= 0 or not self.targets:
            return []
        able = [TargetLease(target.name, target.timeout + MARGIN) for target in self.targets.values()]
        return await self.store.alerts.lease(room, self.name, able)

    async def _tell(self, alert: LeasedAlert) -> None:
        message = compose(alert, self.sources.get(alert.source), self.base)
        settled, about = SettledAlert(alert.id, alert.lease, "told"), _about(alert)
        try:
            about["answer"] = await self.targets[alert.target].tell(message)
            line = "alert_sent"
        except Exception as error:
            after, about["error"] = after_failure(POLICY, alert.attempt, error)
            line = "alert_failed" if after is None else "alert_retrying"
            status = "failed" if after is None else "waiting"
            settled = SettledAlert(alert.id, alert.lease, status, max(after or 0.0, LEAST_PAUSE), about["error"])
        try:
            if await self.store.alerts.settle(settled):
                signals.emit(line, **about)
        except Unavailable as error:  # its lease runs out, and it is sent again with the same id
            signals.emit("alerts_database_unavailable", detail=error.detail)

    # -- looking ----------------------------------------------------------------------------------------------------

    async def incidents(self) -> list[dict[str, Any]]:
        """The open incidents, newest first: the value now and at worst, what to do, and what each target was told."""
        found = await self.store.alerts.incidents(MOST_SHOWN)
        now = {(one.rule.name, one.source): one.value for one in await self._fresh_readings()} if found else {}
        return [one.as_json() | self._state(one, now.get((one.rule, one.source), 0.0)) for one in found]

    def _state(self, incident: Incident, now: float) -> dict[str, Any]:
        """How an incident stands. A rule of another version says only what its row says."""
        rule, name = BY_NAME.get(incident.rule), incident.source
        if rule is None:
            known = {"title": incident.summary, "remedy": "", "page": "/", "closes_at": None}
            return known | {"now": f"{incident.value:g}", "at_worst": f"{incident.worst:g}", "limit": ""}
        worst = max(incident.worst, incident.value, now)
        facts = facts_of(rule, name, now, incident.threshold, self.sources.get(name))
        below = None if now > incident.threshold else parse_time(incident.below_at or "")
        return {
            "value": round(now, 3),
            "worst": round(worst, 3),
            "title": title_of(rule, name),
            "now": told(rule, now),
            "at_worst": told(rule, worst),
            "limit": told(rule, incident.threshold),
            "closes_at": None if below is None else rfc3339(below + timedelta(seconds=self.settings.recover_after)),
            "remedy": rule.remedy.format_map(facts),
            "page": rule.page.format_map(facts),
        }

    async def not_opened(self, incidents: list[dict[str, Any]]) -> list[Reading]:
        """What is above its limit and no incident yet: the next turn of a running process opens one."""
        known = {(one["rule"], one["source"]) for one in incidents}
        found = await self._fresh_readings()
        return [one for one in found if one.is_firing and (one.rule.name, one.source) not in known]

    async def standing(self) -> list[dict[str, Any]]:
        """A row for each rule: the reading that is nearest to its threshold; a few seconds old at most."""
        readings = await self._fresh_readings()
        return [_stands(rule.name, readings, self.settings) for rule in RULES]

    async def _fresh_readings(self) -> list[Reading]:
        if self._standing is None or self.clock.monotonic() - self._standing[0] >= FRESH:
            self._standing = self.clock.monotonic(), await self.readings()
        return self._standing[1]


def advice(incidents: list[dict[str, Any]]) -> list[str]:
    """What to do, once a rule: for SOURCE where a rule has incidents of several sources."""
    remedies: dict[str, str] = {}
    for one in incidents:
        if one["rule"] not in remedies:
            remedies[one["rule"]] = one["remedy"]
        elif one["rule"] in BY_NAME:
            remedies[one["rule"]] = BY_NAME[one["rule"]].remedy.format_map(ANY_SOURCE)
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


def _log(done: IncidentChanges) -> None:
    for row in done.opened:
        about = {name: getattr(row, name) for name in ("rule", "source", "value", "threshold", "summary")}
        signals.emit("alert_opened", incident=row.id, **about)
    for over in done.recovered:
        seconds = round(over.seconds, 3)
        signals.emit("alert_recovered", incident=over.id, rule=over.rule, source=over.source, seconds=seconds)


def _about(alert: LeasedAlert) -> dict[str, Any]:
    names = ("incident", "rule", "source", "target", "word", "attempt")
    return {name: getattr(alert, name) for name in names}


def _stands(name: str, readings: list[Reading], settings: AlertSettings) -> dict[str, Any]:
    rule = BY_NAME[name]
    found = [reading for reading in readings if reading.rule is rule]
    worst = max(found, key=lambda one: one.value / (one.threshold or 1.0), default=None)
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
