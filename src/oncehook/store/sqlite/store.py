"""SQLite at the door and for a look: claims in few, large statements, and everything that a person asks."""

import json
import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings
from oncehook.model.errors import KeyTaken, StoreUnavailable
from oncehook.model.patterns import glob
from oncehook.model.receipt import UNHANDLED, Claim, Claimed, Duplicate, Filter, Payload, Receipt, State, rfc3339
from oncehook.providers.expressions import moment
from oncehook.store import queries
from oncehook.store.effects import Effects
from oncehook.store.protocols import EffectStore
from oncehook.store.rows import DUPLICATES_KEPT, Place
from oncehook.store.sqlite.alerts import SqliteAlerts
from oncehook.store.sqlite.executor import SqliteExecutor

ROWS_AT_ONCE = (256, 64, 16, 4, 1)
"""The sizes of INSERT statements: few sizes, so that SQLite's cache of prepared statements holds them all."""


class SqliteStore(SqliteAlerts):
    """The Store of `sqlite:///file.db`."""

    parallel_claims = 1

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.executor = SqliteExecutor(self)
        self.dialect = self.executor.dialect
        self.effects: EffectStore = Effects(self.executor)

    # -- the door -------------------------------------------------------------------------------------------------

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        latest = SYSTEM.monotonic() + self.settings.claim_timeout / 2
        return await self.write(lambda connection: self._claim_in_time(connection, claims, latest))

    def _claim_in_time(self, connection: sqlite3.Connection, claims: Sequence[Claim], latest: float) -> list[Claimed]:
        """Claim, unless the writer took too long for what was before: its sender may have left."""
        if SYSTEM.monotonic() > latest:
            raise StoreUnavailable("SQLite: the writer was busy for too long")
        return self._claim(connection, claims)

    def _claim(self, connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[Claimed]:
        """Few, large statements: `sqlite3` gives up the GIL at each, and the event loop is slow to give it back."""
        connection.execute("BEGIN IMMEDIATE")
        (last,) = connection.execute(self.sql["last_receipt"]).fetchone()
        offered = list(enumerate(claims, last + 1))  # nobody else can draw ids before our COMMIT
        inserted = _insert_rows(connection, self.sql["claim"], [_receipt_row(id, claim) for id, claim in offered])
        if inserted == len(claims):
            fresh = offered
        else:
            rows = connection.execute(self.sql["fresh_receipts"], (last,))
            new = {row[0] for row in rows}
            fresh = [(id, claim) for id, claim in offered if id in new]
        _insert_rows(connection, self.sql["claim_payload"], [(id, claim.body, claim.headers) for id, claim in fresh])
        for id, claim in fresh:
            if claim.keys:
                self._take_keys(connection, id, claim)
            if claim.inline_seconds is not None:
                connection.execute(self.sql["claim_inline"], (claim.inline_seconds, id))
            elif claim.status is State.FAILED:
                connection.execute(self.sql["claim_failed"], (id,))
        outcome = {id: Claimed(id, True, claim.status, claim.fingerprint) for id, claim in fresh}
        for id, claim in offered:
            if id not in outcome:
                outcome[id] = self._look_up(connection, claim)
        connection.execute("COMMIT")
        return list(map(outcome.__getitem__, range(last + 1, last + 1 + len(claims))))

    def _take_keys(self, connection: sqlite3.Connection, receipt: int, claim: Claim) -> None:
        try:
            connection.executemany(self.sql["claim_key"], [(claim.source, key, receipt) for key in claim.keys])
        except sqlite3.IntegrityError as error:
            raise KeyTaken("another receipt has one of the event's keys") from error

    async def claim_or_find(self, claim: Claim) -> Claimed:
        return await self.write(lambda connection: self._claim_or_find(connection, claim))

    def _claim_or_find(self, connection: sqlite3.Connection, claim: Claim) -> Claimed:
        for key in claim.keys:
            found = connection.execute(self.sql["claimed_by_key"], (claim.source, key)).fetchone()
            if found is not None:
                return Claimed(found[0], False, State(found[1]), found[2], found[2] == claim.fingerprint)
        return self._claim(connection, [claim])[0]

    def _look_up(self, connection: sqlite3.Connection, claim: Claim) -> Claimed:
        before = connection.execute(self.sql["claimed_before"], (claim.source, claim.event_id)).fetchone()
        return Claimed(before[0], False, State(before[1]), before[2], before[2] == claim.fingerprint)

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        rows = [
            {
                "receipt": d.receipt,
                "delivery_id": d.delivery_id,
                "fingerprint": d.fingerprint,
                "same_body": d.same_body,
                "most": DUPLICATES_KEPT,
            }
            for d in duplicates
        ]
        await self.write(lambda connection: _in_transaction(connection, self.sql["note_duplicate"], rows))

    # -- looking --------------------------------------------------------------------------------------------------

    async def find(
        self, wanted: Filter, *, limit: int, before: Place | None = None, down_to: Place | None = None
    ) -> list[Receipt]:
        return await self._find(_parameters(wanted, before, down_to) | {"limit": limit})

    async def by_event_id(self, event_id: str, *, limit: int) -> list[Receipt]:
        return await self._find(
            {"event_id": event_id, "sources": json.dumps(await self.known_sources()), "limit": limit}
        )

    async def get(self, receipt: int) -> Receipt | None:
        found = await self._find({"receipt": receipt, "limit": 1})
        return found[0] if found else None

    async def _find(self, parameters: dict[str, Any]) -> list[Receipt]:
        sql = queries.with_given(self.sql["find"], set(parameters))
        return [_receipt(row) for row in await self.read(sql, parameters)]

    async def payload(self, receipt: int) -> Payload | None:
        rows = await self.read(self.sql["payload"], {"receipt": receipt})
        return Payload(rows[0]["body"], msgspec.json.decode(rows[0]["headers"])) if rows else None

    async def duplicates(self, receipt: int) -> list[dict[str, Any]]:
        rows = await self.read(self.sql["duplicates"], {"receipt": receipt})
        return [{**dict(row), "same_body": bool(row["same_body"])} for row in rows]

    async def counts(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in await self.read(self.sql["counts"], {})]
        return rows + [dict(row) for row in await self.read(self.sql["counts_duplicates"], {})]


def _receipt_row(id: int, claim: Claim) -> tuple[Any, ...]:
    return (
        id, claim.source, claim.provider, claim.event_id, claim.type, claim.object_id, claim.delivery_id,
        rfc3339(claim.occurred_at), claim.correlation_id, claim.status, claim.last_error, claim.fingerprint,
        claim.serial_key,
    )  # fmt: skip


def _insert_rows(connection: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert all of them in few statements, and return how many were new."""
    inserted, start = 0, 0
    for size in ROWS_AT_ONCE:
        while len(rows) - start >= size:
            values = [value for row in rows[start : start + size] for value in row]
            inserted += connection.execute(_with_rows(sql, size, len(rows[start])), values).rowcount
            start += size
    return inserted


@cache
def _with_rows(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.replace(":rows", ", ".join([row] * rows))


def _in_transaction(connection: sqlite3.Connection, sql: str, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(sql, rows)
    connection.execute("COMMIT")


def _parameters(wanted: Filter, before: Place | None, down_to: Place | None = None) -> dict[str, Any]:
    given: dict[str, Any] = {
        "source": wanted.source,
        "type": None if wanted.type is None else glob(wanted.type),
        "object": wanted.object,
        "status": None if wanted.status == UNHANDLED else wanted.status,
        "unhandled": True if wanted.status == UNHANDLED else None,
        "since": rfc3339(wanted.since),
        "until": rfc3339(wanted.until),
        "search": wanted.search,
        "event_id": wanted.event_id,
    }
    if before is not None:
        given |= {"before_time": before[0], "before_receipt": before[1]}
    if down_to is not None:
        given |= {"from_time": down_to[0], "from_receipt": down_to[1]}
    return {name: value for name, value in given.items() if value is not None}


def _receipt(row: sqlite3.Row) -> Receipt:
    values = dict(row)
    for name in ("occurred_at", "received_at", "next_attempt_at", "processed_at", "failed_at", "unhandled_at"):
        values[name] = moment(values[name])
    return Receipt(**values | {"status": State(values["status"])})
