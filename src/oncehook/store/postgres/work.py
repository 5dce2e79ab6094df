"""PostgreSQL's side of the work: leases and the fence. The handler's own transaction is beside it."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import asyncpg
import msgspec

from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Held, Leased, Settled
from oncehook.model.patterns import Handled
from oncehook.store import queries
from oncehook.store.postgres.dialect import array
from oncehook.store.postgres.handler import HandlerConnections, PostgresTransaction
from oncehook.store.postgres.lease import PostgresLease, leased_from
from oncehook.store.postgres.pool import LOST, PostgresPool
from oncehook.store.postgres.roster import handled_parameters
from oncehook.store.postgres.session import session_name

_encode = msgspec.json.Encoder().encode


def held_json(held: Sequence[Held]) -> str:
    return _encode([{"receipt": receipt, "lease": lease} for receipt, lease in held]).decode()


def settled_json(settled: Sequence[Settled]) -> str:
    """`Settled` rows for the store; every text is freed of what PostgreSQL cannot hold."""
    return _encode(settled).decode().replace("\\u0000", "\\ufffd")


class PostgresWork(PostgresLease):
    """The other verbs of the worker."""

    handling: HandlerConnections | None = None

    async def open(self) -> None:
        limit, timeout = self.settings.concurrency, self.settings.claim_timeout
        self.handling = HandlerConnections(
            self.settings.database,
            self.sql,
            limit=limit,
            timeout=timeout,
            statements=self._statements,
            cleans=self.settings.clean_sessions,
            fast=self.settings.fast_paths,
            lease=self.settings.lease,
            longest=lambda: self.longest_handler(),
            worker=lambda: self.worker,
        )
        await super().open()

    async def close(self) -> None:
        handling, self.handling = self.handling, None
        try:
            if handling is not None:
                await handling.close()
        finally:
            await super().close()

    async def lease_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        given = {"receipt": receipt, "seconds": seconds, "worker": worker}
        rows = await self.read(self.sql["lease_one"], given)
        return leased_from(rows)[0] if rows else None

    async def abandon_inline(self, reason: str) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["abandon_inline"], {"reason": reason})]

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        rows = await self.read(self.sql["settle"], {"given": settled_json(settled)})
        return {row[0] for row in rows}

    async def release(self, held: Sequence[Held], after: float | None = None) -> int:
        return len(await self.read(self.sql["release"], {"held": held_json(held), "after": after}))

    async def release_strays(self, worker: str, held: Collection[int]) -> int:
        return len(await self.read(self.sql["release_strays"], {"worker": worker, "held": array(held)}))

    async def expired(self, limit: int, after: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["expired"], {"limit": limit, "after": after})]

    async def end_sessions(self, worker: str) -> int:
        return len(await self.read(self.sql["end_sessions"], {"worker": worker, "session": session_name(worker)}))

    async def next_due(self, handled: Handled | None = None) -> float | None:
        rows = await self.read(self.sql["next_due"], handled_parameters(handled))
        due: float | None = rows[0][0]
        return due

    def transaction(self) -> PostgresTransaction:
        self._pool_or_raise()
        assert self.handling is not None
        return PostgresTransaction(self.handling)

    def heart(self) -> "PostgresHeart":
        return PostgresHeart(self)


class PostgresHeart:
    """Extends leases from a thread of its own, on a connection of its own."""

    def __init__(self, store: PostgresPool) -> None:
        self.store = store
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def beat(self, held: Sequence[Held], seconds: float) -> None:
        """Hold these for so long from now. Raises StoreUnavailable if the database does not answer."""
        self._send("extend", {"seconds": seconds, "held": held_json(held)}, seconds)

    def release(self, held: Sequence[Held]) -> None:
        """Give these back without an attempt. Raises StoreUnavailable if the database does not answer."""
        self._send("release", {"held": held_json(held), "after": None}, self.store.settings.claim_timeout)

    def _send(self, name: str, given: dict[str, Any], seconds: float) -> None:
        try:
            self._loop.run_until_complete(self._execute(name, given, seconds))
        except (*LOST, asyncpg.PostgresError) as error:
            self._drop()
            raise StoreUnavailable(f"the heartbeat failed: {type(error).__name__}") from error
        except BaseException:
            self._drop()  # what state it is in is not known
            raise

    async def _execute(self, name: str, given: dict[str, Any], seconds: float) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self.store.connect("oncehook heartbeat", seconds)
        text, names = queries.numbered(self.store.sql[name])
        await self._connection.execute(text, *(given[one] for one in names))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))  # the loop closes the socket in its next turn

    def close(self) -> None:
        self._drop()
        self._loop.close()
