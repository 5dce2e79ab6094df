"""PostgreSQL through asyncpg: the store as a whole, duplicates, and everything that a person asks."""

from collections.abc import Sequence
from typing import Any

import msgspec

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.model.patterns import like
from oncehook.model.receipt import UNHANDLED, Duplicate, Filter, Payload, Receipt, State
from oncehook.providers.expressions import moment
from oncehook.store import queries
from oncehook.store.effects import Effects
from oncehook.store.postgres.alerts import PostgresAlerts
from oncehook.store.postgres.claim import PostgresClaim
from oncehook.store.postgres.executor import PostgresExecutor
from oncehook.store.postgres.pool import plain
from oncehook.store.protocols import EffectStore
from oncehook.store.rows import DUPLICATES_KEPT, Place

_encode = msgspec.json.Encoder().encode


class PostgresStore(PostgresClaim, PostgresAlerts):
    """The Store of `postgresql://…`."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings, clock)
        self.executor = PostgresExecutor(self)
        self.dialect = self.executor.dialect
        self.effects: EffectStore = Effects(self.executor)

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
        async with self.connection() as connection:
            await connection.execute(self.sql["note_duplicate"], _encode(rows).decode(), DUPLICATES_KEPT)

    # -- looking --------------------------------------------------------------------------------------------------

    async def find(
        self, wanted: Filter, *, limit: int, before: Place | None = None, down_to: Place | None = None
    ) -> list[Receipt]:
        return await self._find(_parameters(wanted, before, down_to) | {"limit": limit})

    async def by_event_id(self, event_id: str, *, limit: int) -> list[Receipt]:
        return await self._find({"event_id": event_id, "sources": await self.known_sources(), "limit": limit})

    async def get(self, receipt: int) -> Receipt | None:
        found = await self._find({"receipt": receipt, "limit": 1})
        return found[0] if found else None

    async def _find(self, parameters: dict[str, Any]) -> list[Receipt]:
        rows = await self.read(queries.with_given(self.sql["find"], set(parameters)), parameters)
        return [Receipt(**{**dict(row), "status": State(row["status"])}) for row in rows]

    async def payload(self, receipt: int) -> Payload | None:
        rows = await self.read(self.sql["payload"], {"receipt": receipt})
        return Payload(rows[0]["body"], msgspec.json.decode(rows[0]["headers"])) if rows else None

    async def duplicates(self, receipt: int) -> list[dict[str, Any]]:
        return [plain(row) for row in await self.read(self.sql["duplicates"], {"receipt": receipt})]

    async def counts(self) -> list[dict[str, Any]]:
        rows = await self.read(self.sql["counts"], {})
        return [plain(row) for row in [*rows, *await self.read(self.sql["counts_duplicates"], {})]]


def _parameters(wanted: Filter, before: Place | None, down_to: Place | None = None) -> dict[str, Any]:
    given: dict[str, Any] = {
        "source": wanted.source,
        "type": None if wanted.type is None else like(wanted.type),
        "object": wanted.object,
        "status": None if wanted.status == UNHANDLED else wanted.status,
        "unhandled": True if wanted.status == UNHANDLED else None,
        "since": wanted.since,
        "until": wanted.until,
        "search": wanted.search,
        "event_id": wanted.event_id,
    }
    if before is not None:
        given |= {"before_time": moment(before[0]), "before_receipt": before[1]}
    if down_to is not None:
        given |= {"from_time": moment(down_to[0]), "from_receipt": down_to[1]}
    return {name: value for name, value in given.items() if value is not None}
