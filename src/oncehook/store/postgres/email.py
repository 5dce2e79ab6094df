"""PostgreSQL's side of email: its own statements, read or run in a transaction of their own."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.store.postgres.pool import LOST, plain, told
from oncehook.store.postgres.rejections import PostgresRejections
from oncehook.store.transaction import Transaction

T = TypeVar("T")


class PostgresEmail(PostgresRejections):
    """The verbs of email."""

    async def look(self, name: str, given: Any) -> list[dict[str, Any]]:
        return [plain(row) for row in await self.read(self.sql[name], {"given": json.dumps(given)})]

    async def perform(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        transaction = self.transaction()
        try:
            done = await work(transaction)
            if transaction.used:
                await transaction.settle([])
        except BaseException as error:
            await asyncio.shield(transaction.rollback())
            if isinstance(error, (*LOST, asyncpg.PostgresError)):
                raise StoreUnavailable(f"PostgreSQL: {told(error)}") from error
            raise
        return done
