"""Alerts: what rules measure, whose turn it is to judge, and what is sent to targets."""

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


class Alerts:
    """Implements `AlertStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._array = executor.dialect.array

    async def note_rejections(self, rejected: Mapping[tuple[str, str], int]) -> None:
        given = [{"source": source, "reason": reason, "refused": count} for (source, reason), count in rejected.items()]
        await self._executor.write("note_refusals", {"given": json.dumps(given)})

    async def note_acks(self, acked: Mapping[tuple[str, int], int]) -> None:
        given = [{"source": source, "bucket": bucket, "acked": count} for (source, bucket), count in acked.items()]
        await self._executor.write("note_acks", {"given": json.dumps(given)})

    async def measure(self, name: str, given: Mapping[str, Any]) -> list[RuleMeasurement]:
        return decode(await self._executor.read(name, given), RuleMeasurement)

    async def take_turn(self, name: str, every: float) -> int | None:
        rows = await self._executor.write("take_turn", {"name": name, "every": every})
        return rows[0]["number"] if rows else None

    async def record(
        self, turn: tuple[str, int], firing: Sequence[Mapping[str, Any]], *,
        targets: Iterable[str], recover_after: float, remind: float | None,
    ) -> IncidentChanges | None:  # fmt: skip
        given = {"given": json.dumps(list(firing)), "targets": json.dumps(list(targets)), "seconds": recover_after}

        async def work(run: Run) -> IncidentChanges | None:
            if not await run("hold_turn", {"name": turn[0], "number": turn[1]}):
                return None
            opened = await run("open_incidents", given)
            await run("see_incidents", given)
            await run("lower_incidents", given)
            recovered = await run("recover_incidents", given)
            await run("alert_opened", given | {"ids": self._ids(opened)})
            await run("alert_recovered", {"ids": self._ids(recovered)})
            if remind is not None:
                await run("alert_again", {"seconds": remind})
            return IncidentChanges(decode(opened, OpenedIncident), decode(recovered, RecoveredIncident))

        return await self._executor.transaction(work)

    async def lease(self, limit: int, worker: str, targets: Sequence[TargetLease]) -> list[LeasedAlert]:
        given = {"limit": limit, "worker": worker, "targets": json.dumps([asdict(target) for target in targets])}

        async def work(run: Run) -> list[Any]:
            leased = await run("lease_alerts", given)
            return await run("leased_alerts", {"ids": self._ids(leased)}) if leased else []

        return decode(await self._executor.transaction(work), LeasedAlert)

    async def settle(self, settled: SettledAlert) -> bool:
        return bool(await self._executor.write("settle_alert", asdict(settled)))

    async def incidents(self, limit: int) -> list[Incident]:
        found = await self._executor.read("incidents", {"limit": limit})
        ids = self._array(row["incident"] for row in found)
        alerts = await self._executor.read("alerts_of", {"ids": ids}) if found else []
        sent = [(row["incident"], alert) for row, alert in zip(alerts, decode(alerts, SentAlert), strict=True)]
        return [
            msgspec.structs.replace(
                incident, alerts=tuple(alert for number, alert in sent if number == incident.incident)
            )
            for incident in decode(found, Incident)
        ]

    async def prune(self, incidents: float, rejections: float, acks: float) -> None:
        async def work(run: Run) -> None:
            await run("prune_alerts", {"seconds": incidents})
            await run("prune_incidents", {"seconds": incidents})
            await run("prune_refusals", {"seconds": rejections})
            await run("prune_acks", {"seconds": acks})

        await self._executor.transaction(work)

    def _ids(self, rows: Iterable[Any]) -> str:
        return self._array(row["id"] for row in rows)
