"""PostgreSQL's side of what is kept of refused requests, and of which secrets still verify."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from oncehook.model.receipt import Rejection
from oncehook.store import queries
from oncehook.store.postgres.pool import plain
from oncehook.store.postgres.prune import PostgresPrune, _run
from oncehook.store.rows import REJECTIONS_KEPT


class PostgresRejections(PostgresPrune):
    """The verbs of rejections and secrets."""

    async def keep_rejection(self, rejection: Rejection) -> None:
        given = asdict(rejection)
        async with self.connection() as connection, connection.transaction():
            await _run(connection, self.sql["keep_rejection"], given)
            await _run(connection, self.sql["trim_rejections"], given | {"kept": REJECTIONS_KEPT})

    async def rejections(self, source: str | None = None, *, limit: int = 20) -> list[dict[str, Any]]:
        given = {"limit": limit} | ({} if source is None else {"source": source})
        return [plain(row) for row in await self.read(queries.with_given(self.sql["rejections"], set(given)), given)]

    async def note_secrets(self, used: Mapping[tuple[str, str], int]) -> None:
        async with self.connection() as connection, connection.transaction():
            for (source, secret), count in sorted(used.items()):
                given = {"source": source, "secret": secret, "verified": count}
                await _run(connection, self.sql["note_secret"], given)

    async def secrets_used(self) -> list[dict[str, Any]]:
        return [plain(row) for row in await self.read(self.sql["secrets_used"], {})]
