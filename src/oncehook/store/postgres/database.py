"""PostgreSQL as the store needs it, through asyncpg."""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.store.database import Process
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


class PostgresDatabase:
    """Implements `Database`."""

    dialect = POSTGRES
    handler_turn = None

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.pool = PostgresPool(settings, clock)
        self.process = Process()
        self.executor = PostgresExecutor(self.pool.connection)
        self.claims = PostgresClaims(self.pool)
        self.schema = PostgresSchema(self.pool)
        self.retention = PostgresRetention(self.pool, self.executor)
        self.wakeups = PostgresWakeups(self.pool)
        self.handling: HandlerConnections | None = None

    @property
    def settings(self) -> Settings:
        return self.pool.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self.pool.settings = settings

    def leases(self, pauses: Pauses) -> PostgresLeases:
        return PostgresLeases(self.executor, pauses, self.pool.clock)

    async def open(self) -> None:
        limit, timeout = self.settings.concurrency, self.settings.claim_timeout
        self.handling = HandlerConnections(
            self.settings.database,
            self.pool.sql,
            limit=limit,
            timeout=timeout,
            statements=self.pool.statements,
            cleans=self.settings.clean_sessions,
            fast=self.settings.fast_paths,
            lease=self.settings.lease,
            longest=lambda: self.process.longest_handler(),
            worker=lambda: self.process.worker,
        )
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
        await self.claims.probe()

    async def risks(self) -> list[str]:
        return await self.pool.risks()

    def transaction(self) -> PostgresTransaction:
        self.pool.check_open()
        assert self.handling is not None
        return PostgresTransaction(self.handling)

    def heart(self) -> PostgresHeart:
        return PostgresHeart(self.pool)


open_database = PostgresDatabase
