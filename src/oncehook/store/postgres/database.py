"""PostgreSQL as the store needs it, through asyncpg."""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.store.database import Connector, Process, closing_on_error
from oncehook.store.executor import Executor
from oncehook.store.operator_protocols import RetentionStore
from oncehook.store.pauses import Pauses
from oncehook.store.postgres.claims import PostgresClaims
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.postgres.executor import PostgresExecutor
from oncehook.store.postgres.handler import HandlerConnections, PostgresTransaction
from oncehook.store.postgres.heart import PostgresHeart
from oncehook.store.postgres.leases import PostgresLeases
from oncehook.store.postgres.pool import PostgresPool
from oncehook.store.postgres.retention import PostgresRetention
from oncehook.store.postgres.schema import PostgresSchema
from oncehook.store.postgres.wake import PostgresWakeups
from oncehook.store.protocols import ClaimStore, SchemaStore, WakeupStore


class PostgresDatabase:
    """Implements `Database`."""

    dialect = POSTGRES
    handler_turn = None

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.pool = PostgresPool(settings, clock)
        self.connector: Connector = self.pool
        self.process = Process()
        self.executor: Executor = PostgresExecutor(self.pool.connection)
        claims = PostgresClaims(self.pool)
        self.claims: ClaimStore = claims
        self._probe = claims.probe
        self.schema: SchemaStore = PostgresSchema(self.pool)
        self.retention: RetentionStore = PostgresRetention(self.pool, self.executor)
        self.wakeups: WakeupStore = PostgresWakeups(self.pool)
        self.handling: HandlerConnections | None = None

    def leases(self, pauses: Pauses) -> PostgresLeases:
        return PostgresLeases(self.executor, pauses, self.pool.clock)

    async def open(self) -> None:
        settings = self.pool.settings
        self.handling = HandlerConnections(
            settings.database,
            self.pool.sql,
            limit=settings.concurrency,
            timeout=settings.claim_timeout,
            statements=self.pool.statements,
            cleans=settings.clean_sessions,
            fast=settings.fast_paths,
            lease=settings.lease,
            longest=lambda: self.process.longest_handler(),
            worker=lambda: self.process.worker,
        )
        async with closing_on_error(self):
            await self.pool.open()

    async def close(self) -> None:
        handling, self.handling = self.handling, None
        try:
            if handling is not None:
                await handling.close()
        finally:
            await self.pool.close()

    async def ping(self) -> None:
        await self.pool.ping()
        await self._probe()

    async def risks(self) -> list[str]:
        return await self.pool.risks()

    def transaction(self) -> PostgresTransaction:
        self.pool.check_open()
        assert self.handling is not None
        return PostgresTransaction(self.handling)

    def heart(self) -> PostgresHeart:
        return PostgresHeart(self.pool)


open_database = PostgresDatabase
