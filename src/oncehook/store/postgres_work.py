"""PostgreSQL's side of the work: leases, the fence, and the handler's own transaction."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from oncehook.errors import StoreUnavailable
from oncehook.receipt import Held, Leased, Settled
from oncehook.store import queries
from oncehook.store.postgres_pool import PostgresPool, plain
from oncehook.transact import ENDED, NOT_YOURS, Native, TransactionClosed

_encode = msgspec.json.Encoder().encode


def held_json(held: Sequence[Held]) -> str:
    return _encode([{"receipt": receipt, "lease": lease} for receipt, lease in held]).decode()


def settled_json(settled: Sequence[Settled]) -> str:
    """`Settled` rows for the store; every text is freed of what PostgreSQL cannot hold."""
    return _encode(settled).decode().replace("\\u0000", "\\ufffd")


class PostgresWork(PostgresPool):
    """The verbs of the worker."""

    async def lease(self, limit: int, seconds: float, worker: str, *, rescued: bool = False) -> list[Leased]:
        rows = await self._read(
            self.sql["lease"], {"limit": limit, "seconds": seconds, "worker": worker, "rescued": rescued}
        )
        return [Leased(**dict(row)) for row in rows]

    async def lease_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        given = {"receipt": receipt, "seconds": seconds, "worker": worker}
        rows = await self._read(self.sql["lease_one"], given)
        return Leased(**dict(rows[0])) if rows else None

    async def abandon_inline(self) -> list[int]:
        return [row[0] for row in await self._read(self.sql["abandon_inline"], {})]

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        rows = await self._read(self.sql["settle"], {"given": settled_json(settled)})
        return {row[0] for row in rows}

    async def release(self, held: Sequence[Held]) -> int:
        return len(await self._read(self.sql["release"], {"held": held_json(held)}))

    async def expired(self, limit: int, after: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._read(self.sql["expired"], {"limit": limit, "after": after})]

    async def attempts(self, receipt: int) -> list[dict[str, Any]]:
        return [plain(row) for row in await self._read(self.sql["attempts"], {"receipt": receipt})]

    async def next_due(self) -> float | None:
        rows = await self._read(self.sql["next_due"], {})
        due: float | None = rows[0][0]
        return due

    def transaction(self) -> "PostgresTransaction":
        return PostgresTransaction(self)

    def heart(self) -> "PostgresHeart":
        return PostgresHeart(self.settings.database, self.sql["extend"])


class PostgresTransaction(Native):
    """A handler's transaction on a pooled connection, begun at its first use."""

    def __init__(self, store: PostgresPool) -> None:
        self.store = store
        self.used = False  # and never False again: what was rolled back must not be marked as done
        self._beginning = asyncio.Lock()
        self._connection: Any = None
        self._finished = False

    async def connection(self) -> Any:
        """The connection, in its transaction."""
        async with self._beginning:  # a handler may send its first two statements at once
            if self._finished:  # the handler was given up while this waited
                raise TransactionClosed(ENDED)
            if self._connection is None:
                await self._begin()
            return self._connection

    async def _begin(self) -> None:
        pool = self.store._pool_or_raise()
        connection = await pool.acquire(timeout=self.store.settings.claim_timeout)
        try:
            await connection.execute("BEGIN")
        except BaseException:
            connection.terminate()  # whether it has begun is not known
            await pool.release(connection)
            raise
        self._connection, self.used = connection, True

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """The mark, and the COMMIT of it and all the handler did; False, and nothing of it, if a lease was lost."""
        try:
            if not self._connection.is_in_transaction():
                raise TransactionClosed(NOT_YOURS)
            await self._connection.execute(self._settle_and_commit(settled))
        except asyncpg.DivisionByZeroError:
            await self.rollback()
            return False
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        await self._release()
        return True

    def _settle_and_commit(self, settled: Sequence[Settled]) -> str:
        """One message, so that a process that is stopped here holds no lock: PostgreSQL goes on to the COMMIT alone."""
        sql = self.store.sql
        guard = sql["settle_or_fail"].format(expected=len(settled))
        literal = settled_json(settled).replace("'", "''")
        marks, _, _ = sql["settle"].rpartition("\n")  # all but its last line, which only reads
        return marks.replace(":given", f"'{literal}'") + "\n" + guard

    async def rollback(self) -> None:
        self._finished = True
        async with self._beginning:
            if self._connection is None:
                return
            try:
                await self._connection.execute("ROLLBACK")
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                self._connection.terminate()
            finally:
                await self._release()

    async def _release(self) -> None:
        self._finished = True
        connection, self._connection = self._connection, None
        await self.store._pool_or_raise().release(connection)


class PostgresHeart:
    """Extends leases from a thread of its own, on a connection of its own."""

    def __init__(self, database: str, sql: str) -> None:
        self.database = database
        self.sql, _ = queries.numbered(sql)
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def beat(self, held: Sequence[Held], seconds: float) -> None:
        """Hold these for so long from now. Raises StoreUnavailable if the database does not answer."""
        try:
            self._loop.run_until_complete(self._beat(held, seconds))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            self._drop()
            raise StoreUnavailable(f"the heartbeat failed: {type(error).__name__}") from error

    async def _beat(self, held: Sequence[Held], seconds: float) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self.database, timeout=seconds, command_timeout=seconds)
        await self._connection.execute(self.sql, seconds, held_json(held))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))  # the loop closes the socket in its next turn

    def close(self) -> None:
        self._drop()
        self._loop.close()
