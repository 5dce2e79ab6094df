"""PostgreSQL's side of incidents: what rules measure, who has the turn, and what targets are told."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from oncehook.model.incident import AlertTarget, LeasedAlert, SettledAlert, Watched, with_alerts
from oncehook.store.postgres.dialect import array
from oncehook.store.postgres.pool import plain
from oncehook.store.postgres.prune import _run
from oncehook.store.postgres.web import PostgresWeb


class PostgresAlerts(PostgresWeb):
    """The verbs of alerts."""

    async def note_refusals(self, refused: Mapping[tuple[str, str], int]) -> None:
        given = [
            {"source": source, "reason": reason, "refused": number} for (source, reason), number in refused.items()
        ]
        await self.read(self.sql["note_refusals"], {"given": json.dumps(given)})

    async def note_acks(self, acked: Mapping[tuple[str, int], int]) -> None:
        given = [{"source": source, "bucket": bucket, "acked": number} for (source, bucket), number in acked.items()]
        await self.read(self.sql["note_acks"], {"given": json.dumps(given)})

    async def measure(self, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql[name], dict(given))]

    async def take_turn(self, name: str, every: float) -> int | None:
        rows = await self.read(self.sql["take_turn"], {"name": name, "every": every})
        return rows[0]["number"] if rows else None

    async def watch(
        self,
        turn: tuple[str, int],
        firing: Sequence[Mapping[str, Any]],
        *,
        targets: Iterable[str],
        recover_after: float,
        remind: float | None,
    ) -> Watched | None:
        given = {"given": json.dumps(list(firing)), "targets": json.dumps(list(targets)), "seconds": recover_after}
        async with self.connection() as connection, connection.transaction():
            if not await _run(connection, self.sql["hold_turn"], {"name": turn[0], "number": turn[1]}):
                return None
            opened = await _run(connection, self.sql["open_incidents"], given)
            await _run(connection, self.sql["see_incidents"], given)
            await _run(connection, self.sql["lower_incidents"], given)
            recovered = await _run(connection, self.sql["recover_incidents"], given)
            await _run(connection, self.sql["alert_opened"], given | {"ids": array(row["id"] for row in opened)})
            await _run(connection, self.sql["alert_recovered"], {"ids": array(row["id"] for row in recovered)})
            if remind is not None:
                await _run(connection, self.sql["alert_again"], {"seconds": remind})
        return Watched([dict(row) for row in opened], [dict(row) for row in recovered])

    async def lease_alerts(self, limit: int, worker: str, targets: Sequence[AlertTarget]) -> list[LeasedAlert]:
        wanted = json.dumps([{"target": one.target, "seconds": one.seconds} for one in targets])
        async with self.connection() as connection, connection.transaction():
            given = {"limit": limit, "worker": worker, "targets": wanted}
            leased = await _run(connection, self.sql["lease_alerts"], given)
            ids = array(row["id"] for row in leased)
            rows = await _run(connection, self.sql["leased_alerts"], {"ids": ids}) if leased else []
        return [LeasedAlert(**plain(row)) for row in rows]

    async def settle_alert(self, settled: SettledAlert) -> bool:
        return bool(await self.read(self.sql["settle_alert"], asdict(settled)))

    async def incidents(self, limit: int) -> list[dict[str, Any]]:
        found = [plain(row) for row in await self.read(self.sql["incidents"], {"limit": limit})]
        ids = array(row["incident"] for row in found)
        rows = [plain(row) for row in await self.read(self.sql["alerts_of"], {"ids": ids})] if found else []
        return with_alerts(found, rows)

    async def prune_incidents(self, incidents: float, refusals: float, acks: float) -> None:
        async with self.connection() as connection, connection.transaction():
            await _run(connection, self.sql["prune_alerts"], {"seconds": incidents})
            await _run(connection, self.sql["prune_incidents"], {"seconds": incidents})
            await _run(connection, self.sql["prune_refusals"], {"seconds": refusals})
            await _run(connection, self.sql["prune_acks"], {"seconds": acks})
