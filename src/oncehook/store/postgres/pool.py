"""The connection pool of PostgreSQL, the classes of its errors, migrations and partitions."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import date, timedelta
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, KeyTaken, RowRefused, SourceMoved, StoreUnavailable
from oncehook.observability import signals
from oncehook.store import queries
from oncehook.store.identity import READ_ONLY, Identity, IdentityMonitor, to_identity
from oncehook.store.postgres import hosts
from oncehook.store.postgres.durability import connections_risk, risks, unsafe_setting

Connection = asyncpg.pool.PoolConnectionProxy
T = TypeVar("T")

CONNECTIONS = 10
DEDICATED = 2
"""The connections of a worker besides the pool and the handlers: the heartbeat of its leases, and one that listens."""

DAYS_AHEAD = 7
CLOSE_SECONDS = 2.0  # a server that answers takes milliseconds
MIGRATION_SECONDS = 3600.0

CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised by asyncpg if the server closes the connection at the wrong moment
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,  # the server is a standby, or was made read-only: another host may be primary
    OSError,
    TimeoutError,
)
"""After one of these errors the connection is unusable. It is unknown whether the statement was committed."""

RETRYABLE = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
    asyncpg.LockNotAvailableError,
)
"""After one of these errors the statement was not committed, and a retry may succeed. A unique violation means that our
own first try, whose reply was lost, is just being committed. The retry then finds its rows."""

INVALID_ROW = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.UntranslatableCharacterError,
    UnicodeError,
    OverflowError,
)
"""These errors are caused by the content of a row."""


SOURCE_MOVED = "OH003"
"""The error code of a claim in a shard where its source does not live. The guard of a move raises it."""


class PostgresPool:
    """A pool of connections. Also migrates the schema and creates partitions."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.clock = clock
        self.sql = queries.load("postgres")
        self._pool: asyncpg.Pool[Any] | None = None
        self._pid = os.getpid()
        self.identities: IdentityMonitor | None = None
        self.is_pooled = settings.pooler == "transaction"
        self.is_durable = not settings.unsafe_durability

    # -- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            self.is_pooled = await self._detect_pooler()
            if self.is_pooled:
                signals.emit("pooler_detected")
            self._pool = await asyncpg.create_pool(
                self.settings.database,
                connect=cast("Any", _connect),
                min_size=0,  # asyncpg would log a traceback at each failed attempt to keep connections open
                max_size=CONNECTIONS,  # handlers use other connections, so that they cannot block the receiver
                timeout=self.settings.claim_timeout,
                command_timeout=self.settings.claim_timeout / 2,
                init=self._compare_identity,
                reset=skip_reset,
                server_settings={"application_name": "oncehook"},
                **self.cache_options(),
            )
            async with self._pool.acquire(timeout=self.settings.claim_timeout):
                pass  # raises an error if the address is wrong
        except ValueError:
            raise ConfigurationError(
                "database is not a PostgreSQL URL: expected postgresql://user:password@host:port/name"
            ) from None
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(
                f"PostgreSQL at {_location(self.settings.database)} cannot be reached: {error_summary(error)}. "
                f"Check that it is running and that the address and password are correct"
            ) from error
        self._pid = os.getpid()
        await self._check_durability()
        if self.settings.migrate == "auto":
            await self.migrate()
        elif not await self.pending_migrations():
            await self.create_partitions()

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
            await self.check_open().expire_connections()
            raise StoreUnavailable(READ_ONLY)
        unsafe = unsafe_setting(row)
        if unsafe is not None and self.is_durable:
            raise StoreUnavailable(f"PostgreSQL runs with {unsafe}: an acked event could be lost")

    async def risks(self) -> list[str]:
        row = await self._durability()
        short = self._connections_risk(row)
        return self._durability_risks(row) + ([] if short is None else [short])

    def _durability_risks(self, row: Any) -> list[str]:
        return risks(row, len(hosts.hosts_of(self.settings.database).urls))

    def _connections_risk(self, row: Any) -> str | None:
        """Compare the connections of this process with those of the server. A pooler has its own limits."""
        needed = self.settings.concurrency + CONNECTIONS + DEDICATED
        return None if self.is_pooled else connections_risk(needed, row["connections"])

    async def _durability(self) -> Any:
        async with self.connection() as connection:
            return await connection.fetchrow(self.sql["durability"])

    async def _detect_pooler(self) -> bool:
        """Whether there is, or may be, a pooler in transaction mode.

        A server reports its process id when a client connects. A pooler reports an invented one, which differs from
        `pg_backend_pid()`. Its mode cannot be queried, so transaction mode is assumed, which needs the most care.
        """
        if self.settings.pooler != "auto":
            return self.settings.pooler == "transaction"
        connection = await hosts.connect(
            self.settings.database, seconds=self.settings.claim_timeout, statement_cache_size=0
        )
        try:
            process = await connection.fetchval(self.sql["backend_pid"], timeout=self.settings.claim_timeout)
            return bool(process != connection.get_server_pid())
        finally:
            connection.terminate()

    def cache_options(self) -> dict[str, Any]:
        """Return connection options. Behind a pooler in transaction mode, no statement is kept prepared."""
        return {"statement_cache_size": 0} if self.is_pooled else {}

    async def connect(self, name: str, command_timeout: float) -> Any:
        """Open a connection outside the pool."""
        return await hosts.connect(
            self.settings.database,
            seconds=min(self.settings.claim_timeout, command_timeout),
            command_timeout=command_timeout,
            server_settings={"application_name": name},
            **self.cache_options(),
        )

    async def _check_durability(self) -> None:
        row = await self._durability()
        unsafe = unsafe_setting(row)
        if unsafe is not None and self.is_durable:
            raise ConfigurationError(
                f"PostgreSQL runs with {unsafe}: an acked event could be lost. Turn it on, "
                f"or accept the risk with unsafe_durability = true"
            )
        for risk in self._durability_risks(row):
            signals.emit("durability_risk", detail=risk)
        short = self._connections_risk(row)
        if short is not None:
            signals.emit("connections_short", detail=short)

    # -- connections ----------------------------------------------------------------------------------------------

    def check_open(self) -> "asyncpg.Pool[Any]":
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        if self._pid != os.getpid():
            raise StoreUnavailable("the store was opened before a fork: open it in the process that uses it")
        return self._pool

    async def _compare_identity(self, connection: Any) -> None:
        """Compare the identity of a new connection's database, before its first statement."""
        identities = self.identities
        if identities is None:
            return

        async def read() -> Identity:
            return to_identity(await connection.fetchrow(self.sql["identity"]))

        connection.add_termination_listener(lambda _: identities.forget())
        with suppress(StoreUnavailable, asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError):
            await identities.observe(read)  # fails before the first migration and on a standby

    @asynccontextmanager
    async def _acquire(self, seconds: float) -> AsyncIterator[Connection]:
        """Yield a connection of the pool. Close it if its reply was lost or came too late."""
        pool = self.check_open()
        connection = await pool.acquire(timeout=seconds)
        try:
            yield connection
        except (*CONNECTION_LOST, asyncio.CancelledError) as error:
            connection.terminate()
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                await pool.expire_connections()  # the others lead to the same server
            raise
        finally:
            await pool.release(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Yield a connection. Convert errors of the driver to StoreUnavailable."""
        try:
            async with self._acquire(self.settings.claim_timeout) as connection:
                yield connection
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {error_summary(error)}") from error

    async def run_until_certain(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work`, and retry it for `claim_timeout` seconds while its outcome is unknown or it was rolled back.

        `work` must be idempotent.
        """
        pause, deadline = 0.01, self.clock.monotonic() + self.settings.claim_timeout
        problem: Exception | None = None
        while True:
            remaining = deadline - self.clock.monotonic()
            try:
                async with asyncio.timeout(remaining), self._acquire(remaining) as connection:
                    return await work(connection)
            except asyncpg.CheckViolationError as error:
                if error.constraint_name:
                    raise RowRefused(f"PostgreSQL rejected a row: {error.constraint_name}") from error
                await self.create_partitions()  # today has no partition: this process slept for a week
                problem = error
            except (*CONNECTION_LOST, *RETRYABLE) as error:
                if getattr(error, "constraint_name", None) == "webhook_keys_pkey":
                    raise KeyTaken("another receipt has one of the event's keys") from error
                # The deadline itself says less than the error that led to the retries.
                problem = problem if problem and isinstance(error, TimeoutError) else error
            except INVALID_ROW as error:
                raise RowRefused(f"PostgreSQL rejected a row: {type(error).__name__}") from error
            except asyncpg.PostgresError as error:
                if error.sqlstate == SOURCE_MOVED:
                    raise SourceMoved(error_summary(error), retry_after=1) from error
                raise StoreUnavailable(f"PostgreSQL: {error_summary(error)}") from error
            if self.clock.monotonic() + pause > deadline:
                raise StoreUnavailable(f"PostgreSQL: {error_summary(problem)}") from problem
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    # -- migrations and partitions --------------------------------------------------------------------------------

    async def pending_migrations(self) -> list[tuple[int, str, str]]:
        async with self.connection() as connection:
            applied = await self._applied_migrations(connection)
        return queries.pending_migrations("postgres", applied)

    async def _applied_migrations(self, connection: Connection) -> dict[int, str]:
        try:
            return {row["number"]: row["name"] for row in await connection.fetch(self.sql["applied_migrations"])}
        except asyncpg.UndefinedTableError:
            return {}

    async def migrate(self) -> list[str]:
        names = []
        async with self.connection() as connection, connection.transaction():
            await connection.execute(self.sql["migration_lock"], timeout=MIGRATION_SECONDS)
            await connection.execute(self.sql["create_migrations"])
            applied = await self._applied_migrations(connection)
            for number, name, sql in queries.pending_migrations("postgres", applied):
                await connection.execute(sql, timeout=MIGRATION_SECONDS)
                await connection.execute(self.sql["record_migration"].format(number=number, name=name))
                names.append(f"{number:03d}_{name}")
        await self.create_partitions()
        return names

    async def create_partitions(self) -> None:
        """Create the missing partitions of payloads for the days from yesterday to a week ahead.

        LIKE and ATTACH take no lock that blocks a claim; CREATE … PARTITION OF would.
        """
        async with self.connection() as connection:
            existing = await self.partitions(connection)
            today = await connection.fetchval(self.sql["today"])
            missing = [
                d for n in range(-1, DAYS_AHEAD + 1) if partition_name(d := today + timedelta(days=n)) not in existing
            ]
            for day in missing:
                await self.create_partition(connection, day)

    async def partitions(self, connection: Connection) -> set[str]:
        return {row["name"] for row in await connection.fetch(self.sql["payload_partitions"])}

    async def create_partition(self, connection: Connection, day: date) -> None:
        names = {"name": partition_name(day), "day": day, "next_day": day + timedelta(days=1)}
        async with connection.transaction():
            await connection.execute(self.sql["migration_lock"])
            if names["name"] not in await self.partitions(connection):  # another process may have been first
                await connection.execute(self.sql["create_partition"].format_map(names))
                await connection.execute(self.sql["attach_partition"].format_map(names))


async def _connect(address: str, **options: Any) -> Any:
    """Open a connection of the pool."""
    return await hosts.connect(address, seconds=options.pop("timeout"), **options)


async def skip_reset(connection: Any) -> None:
    """Replace asyncpg's reset, which costs a round trip. No handler uses these sessions, so they never change."""


def partition_name(day: date) -> str:
    return f"webhook_payloads_{day:%Y%m%d}"


def _location(address: str) -> str:
    """Return host, port and name of a database URL, without user and password."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2] or "the local socket"
    return f"{host}{parts.path}"


def as_unavailable(error: BaseException) -> StoreUnavailable | None:
    """Convert an error of the driver to StoreUnavailable. Returns None for any other error."""
    return (
        StoreUnavailable(f"PostgreSQL: {error_summary(error)}")
        if isinstance(error, (*CONNECTION_LOST, asyncpg.PostgresError))
        else None
    )


def error_summary(error: BaseException) -> str:
    """Return the server's message, or else the class of the error. Never contains a value or an address."""
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0]).splitlines()[0]
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return hosts.NO_PRIMARY
    return type(error).__name__
