"""Alerts: measurements of rules, incidents that the leader records, and notifications of targets."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from oncehook.model.incident import (
    Incident,
    IncidentChanges,
    LeasedAlert,
    OpenedIncident,
    RecoveredIncident,
    RuleMeasurement,
    SentAlert,
    SettledAlert,
    TargetLease,
)
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.leadership import Leadership, hold


class SqlAlertStore:
    """Implements `AlertStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._array = executor.dialect.array

    async def note_rejections(self, rejected: Mapping[tuple[str, str], int]) -> None:
        parameters = [
            {"source": source, "reason": reason, "refused": count} for (source, reason), count in rejected.items()
        ]
        await self._executor.write("add_rejection_counts", {"input": json.dumps(parameters)})

    async def note_acks(self, acked: Mapping[tuple[str, int], int]) -> None:
        parameters = [{"source": source, "bucket": bucket, "acked": count} for (source, bucket), count in acked.items()]
        await self._executor.write("add_ack_counts", {"input": json.dumps(parameters)})

    async def measure(self, name: str, parameters: Mapping[str, Any]) -> list[RuleMeasurement]:
        return decode(await self._executor.read(name, parameters), RuleMeasurement)

    async def record(
        self, leadership: Leadership, firing: Sequence[Mapping[str, Any]], *,
        targets: Iterable[str], recover_after: float, remind: float | None,
    ) -> IncidentChanges:  # fmt: skip
        parameters = {"input": json.dumps(list(firing)), "targets": json.dumps(list(targets)), "seconds": recover_after}

        async def work(run: Run) -> IncidentChanges:
            await hold(run, leadership)
            opened = await run("open_incidents", parameters)
            await run("update_incidents", parameters)
            await run("start_recovery", parameters)
            recovered = await run("recover_incidents", parameters)
            await run("notify_opened", parameters | {"ids": self._ids(opened)})
            await run("notify_recovered", {"ids": self._ids(recovered)})
            if remind is not None:
                await run("notify_reminder", {"seconds": remind})
            return IncidentChanges(decode(opened, OpenedIncident), decode(recovered, RecoveredIncident))

        return await self._executor.transaction(work)

    async def lease(self, limit: int, worker: str, targets: Sequence[TargetLease]) -> list[LeasedAlert]:
        parameters = {"limit": limit, "worker": worker, "targets": json.dumps([asdict(target) for target in targets])}

        async def work(run: Run) -> list[Any]:
            leased = await run("lease_alerts", parameters)
            return await run("leased_alerts", {"ids": self._ids(leased)}) if leased else []

        return decode(await self._executor.transaction(work), LeasedAlert)

    async def settle(self, settled: SettledAlert) -> bool:
        return bool(await self._executor.write("settle_alert", asdict(settled)))

    async def incidents(self, limit: int) -> list[Incident]:
        incidents = await self._executor.read("incidents", {"limit": limit})
        ids = self._array(row["incident"] for row in incidents)
        alerts = await self._executor.read("incident_alerts", {"ids": ids}) if incidents else []
        sent = [(row["incident"], alert) for row, alert in zip(alerts, decode(alerts, SentAlert), strict=True)]
        return [
            msgspec.structs.replace(
                incident, alerts=tuple(alert for number, alert in sent if number == incident.incident)
            )
            for incident in decode(incidents, Incident)
        ]

    async def prune(self, leadership: Leadership, incidents: float, rejections: float, acks: float) -> None:
        async def work(run: Run) -> None:
            await hold(run, leadership)
            await run("prune_alerts", {"seconds": incidents})
            await run("prune_incidents", {"seconds": incidents})
            await run("prune_rejection_counts", {"seconds": rejections})
            await run("prune_acks", {"seconds": acks})

        await self._executor.transaction(work)

    def _ids(self, rows: Iterable[Any]) -> str:
        return self._array(row["id"] for row in rows)
