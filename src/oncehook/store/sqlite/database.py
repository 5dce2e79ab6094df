"""SQLite as the store needs it: the standard library's driver, one writer, WAL."""

import asyncio

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store.database import Connector, NoWakeups, Process, closing_on_error
from oncehook.store.executor import Executor
from oncehook.store.operator_protocols import RetentionStore
from oncehook.store.pauses import Pauses
from oncehook.store.protocols import ClaimStore, SchemaStore, WakeupStore
from oncehook.store.sqlite.claims import SqliteClaims
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.sqlite.executor import SqliteExecutor
from oncehook.store.sqlite.file import SqliteFile
from oncehook.store.sqlite.handler import Handling, SqliteTransaction
from oncehook.store.sqlite.heart import SqliteHeart
from oncehook.store.sqlite.leases import SqliteLeases
from oncehook.store.sqlite.retention import SqliteRetention
from oncehook.store.sqlite.schema import SqliteSchema


class SqliteDatabase:
    """Implements `Database`."""

    dialect = SQLITE

    def __init__(self, settings: Settings) -> None:
        self.file = SqliteFile(settings)
        self.connector: Connector = self.file
        self.process = Process()
        self.executor: Executor = SqliteExecutor(self.file)
        self.claims: ClaimStore = SqliteClaims(self.file)
        self.schema: SchemaStore = SqliteSchema(self.file)
        self.retention: RetentionStore = SqliteRetention(self.file, self.executor)
        self.wakeups: WakeupStore = NoWakeups()
        self.handling: Handling | None = None

    def leases(self, pauses: Pauses) -> SqliteLeases:
        return SqliteLeases(self.file, self.executor, pauses)

    async def open(self) -> None:
        self.handling = Handling(self.file.path, self.file.sql, self.file.turn)
        async with closing_on_error(self):
            await self.file.open()
            if self.file.settings.migrate == "auto":
                await self.schema.migrate()

    async def close(self) -> None:
        handling, self.handling = self.handling, None
        if handling is not None:
            await asyncio.to_thread(handling.close)
        await self.file.close()

    async def ping(self) -> None:
        await self.file.ping()

    async def risks(self) -> list[str]:
        return await self.file.risks()

    @property
    def handler_turn(self) -> asyncio.Lock:
        return self._handling().turn

    def transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self._handling())

    def heart(self) -> SqliteHeart:
        return SqliteHeart(self.file.path, self.file.sql)

    def _handling(self) -> Handling:
        if self.handling is None:
            raise StoreUnavailable("the store is not open")
        return self.handling


open_database = SqliteDatabase
