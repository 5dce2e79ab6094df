"""Claims on PostgreSQL.

A claim is one statement in a transaction of its own: one round trip, one fsync, shared by every event in it. When the
reply is lost, the same statement with the same ids is sent again on another connection: it waits for the first
one if that is still under way, and finds its own rows if that was committed. Nothing is guessed.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import asyncpg
import msgspec

from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.errors import KeyTaken, StoreUnavailable
from oncehook.model.states import State
from oncehook.store.postgres.pool import Connection, PostgresPool
from oncehook.store.rows import DUPLICATES_KEPT

ID_BLOCK = 512
"""How many receipt ids are drawn at once; a restart leaves a gap of at most as many."""


PING_SECONDS = 1.4
"""How long a check waits for a lock: one that is held longer would make deliveries wait."""


class IdsTaken(Exception):
    """Other receipts have the ids of a claim: the sequence went back, in a failover or a restored backup."""


class Offer:
    """The claims of one call with their receipt ids, and what became of them."""

    def __init__(self, ids: Sequence[int], claims: Sequence[Claim]) -> None:
        self.ids = ids
        self.left = list(zip(ids, claims, strict=True))
        self.outcome: dict[int, Claimed] = {}
        self.violations = 0

    def settle(self, outcome: dict[int, Claimed]) -> None:
        self.outcome |= outcome
        self.left = [pair for pair in self.left if pair[0] not in self.outcome]


class PostgresClaims:
    """Implements `ClaimStore`."""

    parallel = 2

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._sql = pool.sql
        self._clock = pool.clock
        self._ids: list[int] = []

    async def probe(self) -> None:
        """Run the statements of a claim with no events in it: they wait for the same locks, and for the standby."""
        async with self._pool.connection() as connection:
            await connection.fetch(self._sql["claim"], "[]", b"", self._pool.is_durable, timeout=PING_SECONDS)
            await connection.fetch(self._sql["claimed_before"], [], [], self._pool.is_durable, timeout=PING_SECONDS)

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        deadline = self._clock.monotonic() + self._pool.settings.claim_timeout
        while True:
            offer = Offer(await self._draw_ids(len(claims)), claims)
            try:
                while offer.left:  # another round for a receipt that was pruned meanwhile, or whose neighbour is locked
                    await self._pool.surely(partial(self._claim_once, offer))
                return [offer.outcome[id] for id in offer.ids]
            except IdsTaken as error:
                self._ids.clear()
                if self._clock.monotonic() > deadline:
                    raise StoreUnavailable(
                        "PostgreSQL: the sequence webhook_receipt_ids is behind its table"
                    ) from error

    async def insert_or_find(self, claim: Claim) -> Claimed:
        given = claim.source, list(claim.keys), self._pool.is_durable
        while True:  # a receipt that was pruned since is not there any more, and neither are its keys
            try:
                return (await self.insert([claim]))[0]
            except KeyTaken:
                row = await self._pool.surely(
                    lambda connection: connection.fetchrow(self._sql["claimed_by_key"], *given)
                )
            if row is not None:
                same = row["fingerprint"] == claim.fingerprint
                return Claimed(row["id"], False, State(row["status"]), row["fingerprint"], same)

    async def _claim_once(self, offer: Offer, connection: Connection) -> None:
        try:
            rows = await connection.fetch(self._sql["claim"], *_encoded(offer.left), self._pool.is_durable)
        except asyncpg.LockNotAvailableError:
            if not await self._look_up(connection, offer):
                raise
            return
        except asyncpg.UniqueViolationError as error:
            # The first may be our own try whose reply was lost, committing now. Then the next one finds its rows.
            offer.violations += error.constraint_name == "webhook_receipts_pkey"
            if offer.violations > 1:
                raise IdsTaken from error
            raise
        fresh = {row[0] for row in rows}
        offer.settle(
            {id: Claimed(id, True, claim.status, claim.fingerprint) for id, claim in offer.left if id in fresh}
        )
        if offer.left:
            await self._look_up(connection, offer)

    async def _look_up(self, connection: Connection, offer: Offer) -> int:
        """Settle the claims whose receipts are committed; how many. Never waits for a lock on one."""
        sources, event_ids = [c.source for _, c in offer.left], [c.event_id for _, c in offer.left]
        rows = await connection.fetch(self._sql["claimed_before"], sources, event_ids, self._pool.is_durable)
        before = {(row["source"], row["event_id"]): row for row in rows}
        found = [(id, claim, before.get((claim.source, claim.event_id))) for id, claim in offer.left]
        # A receipt with the id of its claim: the first try was committed, and only the reply was lost.
        outcome = {
            id: Claimed(
                row["id"],
                row["id"] == id,
                State(row["status"]),
                row["fingerprint"],
                row["fingerprint"] == claim.fingerprint,
            )
            for id, claim, row in found
            if row is not None
        }
        offer.settle(outcome)
        return len(outcome)

    async def _draw_ids(self, count: int) -> list[int]:
        while len(self._ids) < count:
            rows = await self._pool.surely(
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
            await connection.execute(self._sql["note_duplicate"], _encode(rows).decode(), DUPLICATES_KEPT)


IN_JSON = [field for field in msgspec.structs.fields(Claim) if field.name not in ("body", "fingerprint")]

Row = msgspec.defstruct(
    "Row",
    [
        *(("id", int), ("fingerprint", str), ("start", int), ("size", int)),
        *((field.name, field.type, None if field.required else field.default) for field in IN_JSON),
    ],
    omit_defaults=True,
)
"""A claim as `json_to_recordset` reads it; its body is a part of one long parameter."""

_in_json = attrgetter(*(field.name for field in IN_JSON))
_encode = msgspec.json.Encoder().encode


def _encoded(offered: Sequence[tuple[int, Claim]]) -> tuple[str, bytes]:
    """The rows of a claim as JSON, and their bodies end to end.

    asyncpg encodes an array element by element: fourteen arrays cost the door ten microseconds an event, this one and a
    half, for the same work in PostgreSQL.
    """
    rows, start = [], 1
    for id, claim in offered:
        size = len(claim.body)
        rows.append(Row(id, claim.fingerprint.hex(), start, size, *_in_json(claim)))
        start += size
    return _encode(rows).decode(), b"".join([claim.body for _, claim in offered])
