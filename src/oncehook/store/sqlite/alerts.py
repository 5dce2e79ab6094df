"""SQLite's side of incidents: what rules measure, who has the turn, and what targets are told."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from oncehook.model.incident import AlertTarget, LeasedAlert, SettledAlert, Watched, with_alerts
from oncehook.store.sqlite.web import SqliteWeb


class SqliteAlerts(SqliteWeb):
    """The verbs of alerts."""

    async def note_refusals(self, refused: Mapping[tuple[str, str], int]) -> None:
        given = [
            {"source": source, "reason": reason, "refused": number} for (source, reason), number in refused.items()
        ]

        def note(connection: sqlite3.Connection) -> None:
            connection.execute(self.sql["note_refusals"], {"given": json.dumps(given)})

        await self.write(note)

    async def note_acks(self, acked: Mapping[tuple[str, int], int]) -> None:
        given = [{"source": source, "bucket": bucket, "acked": number} for (source, bucket), number in acked.items()]

        def note(connection: sqlite3.Connection) -> None:
            connection.execute(self.sql["note_acks"], {"given": json.dumps(given)})

        await self.write(note)

    async def measure(self, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql[name], dict(given))]

    async def take_turn(self, name: str, every: float) -> int | None:
        def take(connection: sqlite3.Connection) -> int | None:
            rows = connection.execute(self.sql["take_turn"], {"name": name, "every": every}).fetchall()
            return rows[0][0] if rows else None

        return await self.write(take)

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

        def watch(connection: sqlite3.Connection) -> Watched | None:
            connection.execute("BEGIN IMMEDIATE")
            if not _run(connection, self.sql["hold_turn"], {"name": turn[0], "number": turn[1]}):
                connection.execute("ROLLBACK")
                return None
            opened = _run(connection, self.sql["open_incidents"], given)
            _run(connection, self.sql["see_incidents"], given)
            _run(connection, self.sql["lower_incidents"], given)
            recovered = _run(connection, self.sql["recover_incidents"], given)
            _run(connection, self.sql["alert_opened"], given | {"ids": _ids(opened)})
            _run(connection, self.sql["alert_recovered"], {"ids": _ids(recovered)})
            if remind is not None:
                _run(connection, self.sql["alert_again"], {"seconds": remind})
            connection.execute("COMMIT")
            return Watched(opened, recovered)

        return await self.write(watch)

    async def lease_alerts(self, limit: int, worker: str, targets: Sequence[AlertTarget]) -> list[LeasedAlert]:
        wanted = json.dumps([{"target": one.target, "seconds": one.seconds} for one in targets])

        def lease(connection: sqlite3.Connection) -> list[LeasedAlert]:
            connection.execute("BEGIN IMMEDIATE")
            given = {"limit": limit, "worker": worker, "targets": wanted}
            leased = _run(connection, self.sql["lease_alerts"], given)
            rows = _run(connection, self.sql["leased_alerts"], {"ids": _ids(leased)}) if leased else []
            connection.execute("COMMIT" if leased else "ROLLBACK")
            return [LeasedAlert(**row) for row in rows]

        return await self.write(lease)

    async def settle_alert(self, settled: SettledAlert) -> bool:
        return await self.write(lambda connection: bool(_run(connection, self.sql["settle_alert"], asdict(settled))))

    async def incidents(self, limit: int) -> list[dict[str, Any]]:
        found = [dict(row) for row in await self.read(self.sql["incidents"], {"limit": limit})]
        ids = json.dumps([row["incident"] for row in found])
        rows = [dict(row) for row in await self.read(self.sql["alerts_of"], {"ids": ids})] if found else []
        return with_alerts(found, rows)

    async def prune_incidents(self, incidents: float, refusals: float, acks: float) -> None:
        def prune(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            _run(connection, self.sql["prune_alerts"], {"seconds": incidents})
            _run(connection, self.sql["prune_incidents"], {"seconds": incidents})
            _run(connection, self.sql["prune_refusals"], {"seconds": refusals})
            _run(connection, self.sql["prune_acks"], {"seconds": acks})
            connection.execute("COMMIT")

        await self.write(prune)


def _run(connection: sqlite3.Connection, sql: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = connection.execute(sql, given)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _ids(rows: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps([row["id"] for row in rows])
