"""The SQLite database: the driver of the standard library, one writer, WAL."""

import asyncio
from typing import TYPE_CHECKING

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store.database import Connector, NoWakeups, Process, closing_on_error
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor
from oncehook.store.identity import Identity, IdentityMonitor
from oncehook.store.operator_protocols import RetentionStore
from oncehook.store.pauses import SqlPauseStore
from oncehook.store.protocols import ClaimStore, SchemaStore, WakeupStore
from oncehook.store.sqlite.claims import SqliteClaimStore
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.sqlite.executor import SqliteExecutor
from oncehook.store.sqlite.file import SqliteFile
from oncehook.store.sqlite.handler import HandlerThread, SqliteTransaction
from oncehook.store.sqlite.heartbeat import SqliteHeartbeatConnection
from oncehook.store.sqlite.leases import SqliteLeaseStore
from oncehook.store.sqlite.retention import SqliteRetentionStore
from oncehook.store.sqlite.schema import SqliteSchemaStore

if TYPE_CHECKING:
    from oncehook.store.shards import ShardStore


class SqliteDatabase:
    """Implements `Database`."""

    dialect = SQLITE

    def __init__(self, settings: Settings) -> None:
        self.file = SqliteFile(settings)
        self.connector: Connector = self.file
        self.process = Process()
        self.executor: Executor = SqliteExecutor(self.file)
        self.claims: ClaimStore = SqliteClaimStore(self.file)
        self.schema: SchemaStore = SqliteSchemaStore(self.file)
        self.retention: RetentionStore = SqliteRetentionStore(self.file, self.executor)
        self.wakeups: WakeupStore = NoWakeups()
        self.identities = IdentityMonitor(self.executor, renews=True)
        self.shards: ShardStore | None = None
        self.handler_thread: HandlerThread | None = None

    def leases(self, pauses: SqlPauseStore, encryption: Encryption) -> SqliteLeaseStore:
        return SqliteLeaseStore(self.file, self.executor, pauses, encryption)

    async def open(self) -> None:
        self.handler_thread = HandlerThread(self.file.path, self.file.sql, self.file.write_lock)
        async with closing_on_error(self):
            await self.file.open()
            if self.file.settings.migrate == "auto":
                await self.schema.migrate()

    async def close(self) -> None:
        thread, self.handler_thread = self.handler_thread, None
        if thread is not None:
            await asyncio.to_thread(thread.close)
        await self.file.close()

    async def ping(self) -> None:
        await self.file.ping()

    async def identity(self) -> Identity:
        return await self.identities.read()

    async def risks(self) -> list[str]:
        return await self.file.risks()

    @property
    def handler_lock(self) -> asyncio.Lock:
        return self._open_thread().lock

    def transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self._open_thread())

    def heartbeat_connection(self) -> SqliteHeartbeatConnection:
        return SqliteHeartbeatConnection(self.file.path, self.file.sql)

    def _open_thread(self) -> HandlerThread:
        if self.handler_thread is None:
            raise StoreUnavailable("the store is not open")
        return self.handler_thread


open_database = SqliteDatabase
