"""The PostgreSQL database, through asyncpg."""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.store.database import Connector, Process, closing_on_error
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor
from oncehook.store.identity import Identity, IdentityMonitor
from oncehook.store.operator_protocols import RetentionStore
from oncehook.store.pauses import SqlPauseStore
from oncehook.store.postgres.claims import PostgresClaimStore
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.postgres.executor import PostgresExecutor
from oncehook.store.postgres.handler import HandlerConnections, PostgresTransaction
from oncehook.store.postgres.heartbeat import PostgresHeartbeatConnection
from oncehook.store.postgres.leases import PostgresLeaseStore
from oncehook.store.postgres.pool import PostgresPool
from oncehook.store.postgres.retention import PostgresRetentionStore
from oncehook.store.postgres.schema import PostgresSchemaStore
from oncehook.store.postgres.shards import PostgresShardStore
from oncehook.store.postgres.wakeups import PostgresWakeupStore
from oncehook.store.protocols import ClaimStore, SchemaStore, WakeupStore
from oncehook.store.shards import ShardStore


class PostgresDatabase:
    """Implements `Database`."""

    dialect = POSTGRES
    handler_lock = None

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.pool = PostgresPool(settings, clock)
        self.connector: Connector = self.pool
        self.process = Process()
        self.executor: Executor = PostgresExecutor(self.pool.connection)
        self.pool.identities = self.identities = IdentityMonitor(self.executor, clock)
        claims = PostgresClaimStore(self.pool)
        self.claims: ClaimStore = claims
        self._probe = claims.probe
        self.schema: SchemaStore = PostgresSchemaStore(self.pool)
        self.retention: RetentionStore = PostgresRetentionStore(self.pool, self.executor)
        self.wakeups: WakeupStore = PostgresWakeupStore(self.pool)
        self.shards: ShardStore | None = PostgresShardStore(self.pool)
        self.handler_connections: HandlerConnections | None = None

    def leases(self, pauses: SqlPauseStore, encryption: Encryption) -> PostgresLeaseStore:
        return PostgresLeaseStore(self.executor, pauses, encryption, self.pool.clock)

    async def open(self) -> None:
        settings = self.pool.settings
        self.handler_connections = HandlerConnections(
            settings.database,
            self.pool.sql,
            limit=settings.concurrency,
            timeout=settings.claim_timeout,
            pooler_options=self.pool.cache_options,
            cleans_sessions=settings.clean_sessions,
            fast=settings.fast_paths,
            lease=settings.lease,
            longest_handler=lambda: self.process.longest_handler(),
            worker=lambda: self.process.worker,
        )
        async with closing_on_error(self):
            await self.pool.open()

    async def close(self) -> None:
        connections, self.handler_connections = self.handler_connections, None
        try:
            if connections is not None:
                await connections.close()
        finally:
            await self.pool.close()

    async def ping(self) -> None:
        await self.pool.ping()
        await self._probe()

    async def identity(self) -> Identity:
        return await self.identities.read()

    async def risks(self) -> list[str]:
        return await self.pool.risks()

    def transaction(self) -> PostgresTransaction:
        self.pool.check_open()
        assert self.handler_connections is not None
        return PostgresTransaction(self.handler_connections)

    def heartbeat_connection(self) -> PostgresHeartbeatConnection:
        return PostgresHeartbeatConnection(self.pool)


open_database = PostgresDatabase
