"""PostgreSQL through asyncpg: the pool, what its errors mean, migrations and partitions."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, KeyTaken, RowRefused, StoreUnavailable
from oncehook.observability import signals
from oncehook.store import queries
from oncehook.store.postgres.durable import risks, unsafe_setting

Connection = asyncpg.pool.PoolConnectionProxy
T = TypeVar("T")

CONNECTIONS = 10
DAYS_AHEAD = 7
CLOSE_SECONDS = 2.0  # for a goodbye: a server that answers takes milliseconds
MIGRATION_SECONDS = 3600.0

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg raises when the server says goodbye at the wrong moment
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
)
"""After one of these it is unknown whether the statement was committed, and the connection is of no more use."""

AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
    asyncpg.LockNotAvailableError,
)
"""After one of these it was certainly not, and may well be next time. A unique violation is our own first try, whose
reply was lost and which commits at this very moment: next time the statement finds its rows."""

REFUSED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.UntranslatableCharacterError,
    UnicodeError,
    OverflowError,
)
"""These are about what is in a row."""


class PostgresPool:
    """Connections, and the schema behind them."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.clock = clock
        self.sql = queries.load("postgres")
        self._pool: asyncpg.Pool[Any] | None = None
        self._pid = os.getpid()
        self.pooled = settings.pooler == "transaction"
        self.is_durable = not settings.unsafe_durability

    # -- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            self.pooled = await self._is_pooled()
            if self.pooled:
                signals.emit("pooler_detected")
            self._pool = await asyncpg.create_pool(
                self.settings.database,
                min_size=1,
                max_size=CONNECTIONS,  # handlers have others: they must not keep the door from one
                timeout=self.settings.claim_timeout,
                command_timeout=self.settings.claim_timeout / 2,
                reset=_keep_as_it_is,
                server_settings={"application_name": "oncehook"},
                **self.statements(),
            )
        except ValueError:
            raise ConfigurationError(
                "database is not a PostgreSQL address: expected postgresql://user:password@host:port/name"
            ) from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise StoreUnavailable(
                f"PostgreSQL at {_where(self.settings.database)} cannot be reached: {told(error)}. "
                f"Is it running, and are the address and the password right?"
            ) from error
        self._pid = os.getpid()
        await self._check_durability()
        if self.settings.migrate == "auto":
            await self.migrate()
        elif not await self.pending_migrations():
            await self.make_partitions()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), min(self.settings.claim_timeout, CLOSE_SECONDS))
            except TimeoutError:
                pool.terminate()

    async def ping(self) -> None:
        row = await self._durability()
        if row["is_standby"]:
            raise StoreUnavailable("PostgreSQL is read-only here: it is a standby")
        unsafe = unsafe_setting(row)
        if unsafe is not None and self.is_durable:
            raise StoreUnavailable(f"PostgreSQL runs with {unsafe}: an acked event could be lost")

    async def risks(self) -> list[str]:
        return risks(await self._durability())

    async def _durability(self) -> Any:
        async with self.connection() as connection:
            return await connection.fetchrow(self.sql["durability"])

    async def _is_pooled(self) -> bool:
        """Whether a pooler in transaction mode is, or may be, between.

        A server tells a client its process when they connect; a pooler has to make one up, and is found out by asking
        the server itself. In which mode it pools cannot be asked, and transaction mode is the one that needs care.
        """
        if self.settings.pooler != "auto":
            return self.settings.pooler == "transaction"
        connection = await asyncpg.connect(
            self.settings.database, timeout=self.settings.claim_timeout, statement_cache_size=0
        )
        try:
            process = await connection.fetchval(self.sql["backend"], timeout=self.settings.claim_timeout)
            return bool(process != connection.get_server_pid())
        finally:
            connection.terminate()

    def statements(self) -> dict[str, Any]:
        """Behind a pooler in transaction mode the next statement may meet another server: none is prepared ahead."""
        return {"statement_cache_size": 0} if self.pooled else {}

    async def connect(self, name: str, command_timeout: float) -> Any:
        """A connection beside the pool."""
        return await asyncpg.connect(
            self.settings.database,
            timeout=min(self.settings.claim_timeout, command_timeout),
            command_timeout=command_timeout,
            server_settings={"application_name": name},
            **self.statements(),
        )

    async def _check_durability(self) -> None:
        row = await self._durability()
        unsafe = unsafe_setting(row)
        if unsafe is not None and self.is_durable:
            raise ConfigurationError(
                f"PostgreSQL runs with {unsafe}: an acked event could be lost. Turn it on, "
                f"or set unsafe_durability = true if that is acceptable here"
            )
        for risk in risks(row):
            signals.emit("durability_risk", detail=risk)

    # -- plumbing -------------------------------------------------------------------------------------------------

    def check_open(self) -> "asyncpg.Pool[Any]":
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        if self._pid != os.getpid():
            raise StoreUnavailable("the store was opened before a fork: open it in the process that uses it")
        return self._pool

    @asynccontextmanager
    async def _acquired(self, seconds: float) -> AsyncIterator[Connection]:
        """A connection of the pool. One whose answer was lost or late is cut: nobody waits for it to say more."""
        pool = self.check_open()
        connection = await pool.acquire(timeout=seconds)
        try:
            yield connection
        except (*LOST, asyncio.CancelledError):
            connection.terminate()
            raise
        finally:
            await pool.release(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection; what goes wrong on it is Unavailable."""
        try:
            async with self._acquired(self.settings.claim_timeout) as connection:
                yield connection
        except (*LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {told(error)}") from error

    async def surely(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """`work`, repeated while its outcome is unknown or undone, until the claim's time is up.

        What it does must be the same however often it is done.
        """
        pause, deadline = 0.01, self.clock.monotonic() + self.settings.claim_timeout
        while True:
            left = deadline - self.clock.monotonic()
            try:
                async with asyncio.timeout(left), self._acquired(left) as connection:
                    return await work(connection)
            except asyncpg.CheckViolationError as error:
                if error.constraint_name:
                    raise RowRefused(f"PostgreSQL refuses a row: {error.constraint_name}") from error
                await self.make_partitions()  # there is none for today: this process slept for a week
                problem: Exception = error
            except (*LOST, *AGAIN) as error:
                if getattr(error, "constraint_name", None) == "webhook_keys_pkey":
                    raise KeyTaken("another receipt has one of the event's keys") from error
                problem = error
            except REFUSED as error:
                raise RowRefused(f"PostgreSQL refuses a row: {type(error).__name__}") from error
            except asyncpg.PostgresError as error:
                raise StoreUnavailable(f"PostgreSQL: {told(error)}") from error
            if self.clock.monotonic() + pause > deadline:
                raise StoreUnavailable(f"PostgreSQL: {told(problem)}") from problem
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    # -- migrations and partitions --------------------------------------------------------------------------------

    async def pending_migrations(self) -> list[tuple[int, str, str]]:
        async with self.connection() as connection:
            applied = await self._applied(connection)
        return queries.pending_migrations("postgres", applied)

    async def _applied(self, connection: Connection) -> dict[int, str]:
        try:
            return {row["number"]: row["name"] for row in await connection.fetch(self.sql["applied_migrations"])}
        except asyncpg.UndefinedTableError:
            return {}

    async def migrate(self) -> list[str]:
        done = []
        async with self.connection() as connection, connection.transaction():
            await connection.execute(self.sql["migration_lock"], timeout=MIGRATION_SECONDS)
            await connection.execute(self.sql["create_migrations"])
            applied = await self._applied(connection)
            for number, name, sql in queries.pending_migrations("postgres", applied):
                await connection.execute(sql, timeout=MIGRATION_SECONDS)
                await connection.execute(self.sql["record_migration"].format(number=number, name=name))
                done.append(f"{number:03d}_{name}")
        await self.make_partitions()
        return done

    async def make_partitions(self) -> None:
        """Have a partition of payloads for every day from yesterday to a week ahead.

        LIKE and ATTACH take no lock that a claim waits for; CREATE … PARTITION OF would.
        """
        async with self.connection() as connection:
            there = await self.partitions(connection)
            today = await connection.fetchval(self.sql["today"])
            missing = [
                d for n in range(-1, DAYS_AHEAD + 1) if partition_name(d := today + timedelta(days=n)) not in there
            ]
            for day in missing:
                await self.make_partition(connection, day)

    async def partitions(self, connection: Connection) -> set[str]:
        return {row["name"] for row in await connection.fetch(self.sql["payload_partitions"])}

    async def make_partition(self, connection: Connection, day: date) -> None:
        names = {"name": partition_name(day), "day": day, "next_day": day + timedelta(days=1)}
        async with connection.transaction():
            await connection.execute(self.sql["migration_lock"])
            if names["name"] not in await self.partitions(connection):  # another process may have been first
                await connection.execute(self.sql["make_partition"].format_map(names))
                await connection.execute(self.sql["attach_partition"].format_map(names))


async def _keep_as_it_is(connection: Any) -> None:
    """asyncpg would reset the session with a round trip on each release; nobody changes these: handlers have others."""


def partition_name(day: date) -> str:
    return f"webhook_payloads_{day:%Y%m%d}"


def _where(address: str) -> str:
    """Host, port and name of a database address, without its user and password."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2] or "the local socket"
    return f"{host}{parts.path}"


def unavailable(error: BaseException) -> StoreUnavailable | None:
    """What a driver's error means to callers, or None if it is not a driver's error."""
    return StoreUnavailable(f"PostgreSQL: {told(error)}") if isinstance(error, (*LOST, asyncpg.PostgresError)) else None


def told(error: BaseException) -> str:
    """What may be told of a driver's error: its kind and the server's own sentence, never a value or an address."""
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0]).splitlines()[0]
    return type(error).__name__
