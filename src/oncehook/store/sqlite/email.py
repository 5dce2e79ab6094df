"""SQLite's side of email: its own statements, read or run in a transaction of their own."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store.sqlite.rejections import SqliteRejections
from oncehook.store.transaction import Transaction

T = TypeVar("T")


class SqliteEmail(SqliteRejections):
    """The verbs of email."""

    async def look(self, name: str, given: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql[name], {"given": json.dumps(given)})]

    async def perform(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        transaction = self.transaction()
        try:
            done = await work(transaction)
            if transaction.used:
                await transaction.settle([])
        except BaseException as error:
            await asyncio.shield(transaction.rollback())
            if isinstance(error, sqlite3.Error):
                raise StoreUnavailable(f"SQLite cannot write to {self.path}: {error}") from error
            raise
        return done
