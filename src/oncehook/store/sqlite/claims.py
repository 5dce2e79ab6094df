"""Claims on SQLite: few, large statements on the writer's connection."""

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import asdict

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.errors import KeyTaken, RowRefused, StoreUnavailable
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.store.rows import MAX_DUPLICATES
from oncehook.store.sqlite.file import SqliteFile

ROWS_AT_ONCE = (256, 64, 16, 4, 1)
"""How many rows an INSERT has. With few sizes, SQLite's cache of prepared statements holds them all."""


class SqliteClaimStore:
    """Implements `ClaimStore`."""

    parallel = 1

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._sql = file.sql

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        latest = SYSTEM.monotonic() + self._file.settings.claim_timeout / 2
        return await self._file.write(lambda connection: self._claim_in_time(connection, claims, latest))

    def _claim_in_time(self, connection: sqlite3.Connection, claims: Sequence[Claim], latest: float) -> list[Claimed]:
        """Claim, unless the claim waited too long for the writer: its sender may have left."""
        if SYSTEM.monotonic() > latest:
            raise StoreUnavailable("SQLite: the writer was busy for too long")
        return self._claim(connection, claims)

    def _claim(self, connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[Claimed]:
        """Claim with few, large statements. `sqlite3` releases the GIL at each, and reacquiring it is slow."""
        connection.execute("BEGIN IMMEDIATE")
        (last,) = connection.execute(self._sql["last_receipt"]).fetchone()
        numbered = list(enumerate(claims, last + 1))  # no other writer can use these ids before our COMMIT
        inserted = _insert_rows(connection, self._sql["claim"], [_receipt_row(id, claim) for id, claim in numbered])
        if inserted == len(claims):
            fresh = numbered
        else:
            rows = connection.execute(self._sql["fresh_receipts"], (last,))
            new = {row[0] for row in rows}
            fresh = [(id, claim) for id, claim in numbered if id in new]
        payloads = [(id, claim.body, claim.headers, claim.key_id) for id, claim in fresh]
        _insert_rows(connection, self._sql["claim_payload"], payloads)
        for id, claim in fresh:
            if claim.object is not None:
                self._take_object(connection, id, claim.object)
            if claim.keys:
                self._take_keys(connection, id, claim)
            if claim.inline_seconds is not None:
                connection.execute(self._sql["claim_inline"], (claim.inline_lease, claim.inline_seconds, id))
            elif claim.status is State.FAILED:
                connection.execute(self._sql["claim_failed"], (id,))
        copies = [{"main_id": id, **asdict(copy)} for id, claim in fresh for copy in claim.copies]
        if copies:
            connection.execute(self._sql["claim_copies"], (msgspec.json.encode(copies).decode(),))
        results = {id: Claimed(id, True, claim.status, claim.fingerprint) for id, claim in fresh}
        for id, claim in numbered:
            if id not in results:
                results[id] = self._find_existing(connection, claim)
        connection.execute("COMMIT")
        return list(map(results.__getitem__, range(last + 1, last + 1 + len(claims))))

    def _take_object(self, connection: sqlite3.Connection, receipt: int, address: str) -> None:
        if not connection.execute(self._sql["claim_object"], (receipt, address)).rowcount:
            raise RowRefused("the event's payload object was released: its claim waited for too long")
        connection.execute(self._sql["claim_object_payload"], (address, receipt))

    def _take_keys(self, connection: sqlite3.Connection, receipt: int, claim: Claim) -> None:
        try:
            connection.executemany(
                self._sql["claim_key"], [(claim.source, claim.tenant, key, receipt) for key in claim.keys]
            )
        except sqlite3.IntegrityError as error:
            raise KeyTaken("another receipt has one of the event's keys") from error

    async def insert_or_find(self, claim: Claim) -> Claimed:
        return await self._file.write(lambda connection: self._insert_or_find(connection, claim))

    def _insert_or_find(self, connection: sqlite3.Connection, claim: Claim) -> Claimed:
        for key in claim.keys:
            row = connection.execute(self._sql["claimed_by_key"], (claim.source, claim.tenant, key)).fetchone()
            if row is not None:
                return Claimed(row[0], False, State(row[1]), row[2], row[2] == claim.fingerprint)
        return self._claim(connection, [claim])[0]

    def _find_existing(self, connection: sqlite3.Connection, claim: Claim) -> Claimed:
        event = claim.source, claim.event_id, claim.tenant
        before = connection.execute(self._sql["claimed_before"], event).fetchone()
        return Claimed(before[0], False, State(before[1]), before[2], before[2] == claim.fingerprint)

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        rows = [
            {
                "receipt": d.receipt,
                "delivery_id": d.delivery_id,
                "fingerprint": d.fingerprint,
                "same_body": d.same_body,
                "most": MAX_DUPLICATES,
            }
            for d in duplicates
        ]
        await self._file.write(lambda connection: _in_transaction(connection, self._sql["note_duplicate"], rows))


def _receipt_row(id: int, claim: Claim) -> tuple[Any, ...]:
    return (
        id, claim.source, claim.tenant, claim.provider, claim.event_id, claim.type, claim.object_id, claim.delivery_id,
        rfc3339(claim.occurred_at), claim.correlation_id, claim.status, claim.last_error, claim.fingerprint,
        claim.serial_key, claim.origin,
    )  # fmt: skip


def _insert_rows(connection: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert all rows in few statements, and return how many were new."""
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
