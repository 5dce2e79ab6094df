"""Claims on PostgreSQL.

A claim is one statement in its own transaction: one round trip and one fsync, shared by all its events. If the reply is
lost, the claim is sent again with the same ids on another connection. The second statement waits while the first is
still running, and finds its own rows if the first was committed. So the outcome is always known.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import asyncpg
import msgspec

from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.errors import KeyTaken, RowRefused, StoreUnavailable
from oncehook.model.states import State
from oncehook.store.postgres.pool import Connection, PostgresPool
from oncehook.store.rows import MAX_DUPLICATES

ID_BLOCK = 512
"""How many receipt ids are drawn at once. A restart leaves a gap of at most this size."""


PING_SECONDS = 1.4
"""For how many seconds a health check waits for a lock. A lock held longer would delay deliveries."""


class IdsTaken(Exception):
    """Other receipts have the ids of a claim: the sequence went back after a failover or a restored backup."""


class ClaimBatch:
    """The claims of one call with their receipt ids, and their results."""

    def __init__(self, ids: Sequence[int], claims: Sequence[Claim]) -> None:
        self.ids = ids
        self.pending = list(zip(ids, claims, strict=True))
        self.results: dict[int, Claimed] = {}
        self.violations = 0

    def add_results(self, results: dict[int, Claimed]) -> None:
        self.results |= results
        self.pending = [pair for pair in self.pending if pair[0] not in self.results]


class PostgresClaimStore:
    """Implements `ClaimStore`."""

    parallel = 2

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._sql = pool.sql
        self._clock = pool.clock
        self._ids: list[int] = []

    async def probe(self) -> None:
        """Run the statements of a claim without events. They wait for the same locks, and for the standby."""
        async with self._pool.connection() as connection:
            await connection.fetch(self._sql["claim"], "[]", b"", self._pool.is_durable, timeout=PING_SECONDS)
            await connection.fetch(self._sql["claimed_before"], [], [], self._pool.is_durable, [], timeout=PING_SECONDS)

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        deadline = self._clock.monotonic() + self._pool.settings.claim_timeout
        while True:
            batch = ClaimBatch(await self._draw_ids(len(claims)), claims)
            try:
                while batch.pending:  # again if a receipt was pruned since, or a lock was held
                    await self._pool.run_until_certain(partial(self._claim_once, batch))
                return [batch.results[id] for id in batch.ids]
            except IdsTaken as error:
                self._ids.clear()
                if self._clock.monotonic() > deadline:
                    raise StoreUnavailable(
                        "PostgreSQL: the sequence webhook_receipt_ids is behind its table"
                    ) from error

    async def insert_or_find(self, claim: Claim) -> Claimed:
        parameters = claim.source, list(claim.keys), self._pool.is_durable, claim.tenant
        while True:  # again if the receipt was pruned since, together with its keys
            try:
                return (await self.insert([claim]))[0]
            except KeyTaken:
                row = await self._pool.run_until_certain(
                    lambda connection: connection.fetchrow(self._sql["claimed_by_key"], *parameters)
                )
            if row is not None:
                same = row["fingerprint"] == claim.fingerprint
                return Claimed(row["id"], False, State(row["status"]), row["fingerprint"], same)

    async def _claim_once(self, batch: ClaimBatch, connection: Connection) -> None:
        try:
            sql = self._sql[_statement(batch.pending)]
            rows = await connection.fetch(sql, *_encode_claims(batch.pending), self._pool.is_durable)
        except asyncpg.LockNotAvailableError:
            if not await self._find_existing(connection, batch):
                raise
            return
        except asyncpg.NotNullViolationError as error:
            if error.column_name != "body":
                raise
            raise RowRefused("the event's payload object was released: its claim waited for too long") from error
        except asyncpg.UniqueViolationError as error:
            # The first violation may be our own earlier try, whose reply was lost and which commits now.
            batch.violations += error.constraint_name == "webhook_receipts_pkey"
            if batch.violations > 1:
                raise IdsTaken from error
            raise
        fresh = {row[0] for row in rows}
        batch.add_results(
            {id: Claimed(id, True, claim.status, claim.fingerprint) for id, claim in batch.pending if id in fresh}
        )
        if batch.pending:
            await self._find_existing(connection, batch)

    async def _find_existing(self, connection: Connection, batch: ClaimBatch) -> int:
        """Add the results of claims whose receipts are committed. Never waits for a lock. Returns how many."""
        sources, event_ids, tenants = zip(*((c.source, c.event_id, c.tenant) for _, c in batch.pending), strict=True)
        rows = await connection.fetch(self._sql["claimed_before"], sources, event_ids, self._pool.is_durable, tenants)
        before = {(row["source"], row["event_id"], row["tenant"]): row for row in rows}
        matches = [(id, claim, before.get((claim.source, claim.event_id, claim.tenant))) for id, claim in batch.pending]
        # If a receipt has the id of its claim, the first try was committed and its reply was lost.
        results = {
            id: Claimed(
                row["id"],
                row["id"] == id,
                State(row["status"]),
                row["fingerprint"],
                row["fingerprint"] == claim.fingerprint,
            )
            for id, claim, row in matches
            if row is not None
        }
        batch.add_results(results)
        return len(results)

    async def _draw_ids(self, count: int) -> list[int]:
        while len(self._ids) < count:
            rows = await self._pool.run_until_certain(
                lambda connection: connection.fetch(self._sql["receipt_ids"], ID_BLOCK + count)
            )
            self._ids = [row[0] for row in reversed(rows)] + self._ids
        return sorted(self._ids.pop() for _ in range(count))

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        rows = [
            {
                "receipt_id": d.receipt,
                "delivery_id": d.delivery_id,
                "fingerprint": d.fingerprint.hex(),
                "same_body": d.same_body,
            }
            for d in duplicates
        ]
        async with self._pool.connection() as connection:
            await connection.execute(self._sql["note_duplicate"], _encode(rows).decode(), MAX_DUPLICATES)


JSON_FIELDS = [field for field in msgspec.structs.fields(Claim) if field.name not in ("body", "fingerprint")]

ClaimRow = msgspec.defstruct(
    "ClaimRow",
    [
        *(("id", int), ("fingerprint", str), ("start", int), ("size", int)),
        *((field.name, field.type, None if field.required else field.default) for field in JSON_FIELDS),
    ],
    omit_defaults=True,
)
"""A claim as `json_to_recordset` reads it. Its body is a slice of one long parameter."""

_json_values = attrgetter(*(field.name for field in JSON_FIELDS))
_encode = msgspec.json.Encoder().encode


def _statement(claims: Sequence[tuple[int, Claim]]) -> str:
    """Return the name of the statement that claims: the shortest one that writes all that the claims have."""
    if any(claim.object is not None for _, claim in claims):
        return "claim_with_objects"
    return "claim_with_copies" if any(claim.copies for _, claim in claims) else "claim"


def _encode_claims(claims: Sequence[tuple[int, Claim]]) -> tuple[str, bytes]:
    """Return the rows of a claim as JSON, and their bodies concatenated.

    asyncpg encodes an array element by element. Fourteen arrays cost the receiver 10 µs per event, this encoding costs
    1.5 µs, and PostgreSQL does the same work for both.
    """
    rows, start = [], 1
    for id, claim in claims:
        size = len(claim.body)
        rows.append(ClaimRow(id, claim.fingerprint.hex(), start, size, *_json_values(claim)))
        start += size
    return _encode(rows).decode(), b"".join([claim.body for _, claim in claims])
