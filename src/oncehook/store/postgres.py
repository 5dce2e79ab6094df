"""PostgreSQL through asyncpg.

A claim is one statement in a transaction of its own: one round trip, one fsync, shared by every event in it. When the
reply is lost, the same statement with the same ids is sent again on another connection: it waits for the first
one if that is still under way, and finds its own rows if that was committed. Nothing is guessed.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from oncehook.clock import SYSTEM, Clock
from oncehook.errors import ConfigurationError, RowRefused, StoreUnavailable
from oncehook.extract import moment
from oncehook.receipt import Claim, Claimed, Duplicate, Filter, Payload, Receipt, State
from oncehook.settings import Settings
from oncehook.store import DUPLICATES_KEPT, queries

Connection = asyncpg.pool.PoolConnectionProxy

ID_BLOCK = 512
"""How many receipt ids are drawn at once; a restart leaves a gap of at most as many."""

DAYS_AHEAD = 7
MIGRATION_LOCK = 0x6F6E6365  # "once"

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
)
"""After one of these it is unknown whether the statement was committed."""

AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""After one of these it was certainly not, and may well be next time."""

REFUSED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.UntranslatableCharacterError,
    UnicodeError,
    OverflowError,
)
"""These are about what is in a row."""


class PostgresStore:
    """The Store of `postgresql://…`."""

    parallel_claims = 2

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.clock = clock
        self.sql = queries.load("postgres")
        self._pool: asyncpg.Pool[Any] | None = None
        self._ids: list[int] = []

    # -- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self.settings.database,
                min_size=1,
                max_size=10,
                timeout=self.settings.claim_timeout,
                command_timeout=self.settings.claim_timeout / 2,
                reset=_keep_as_it_is,
                server_settings={"application_name": "oncehook"},
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {_told(error)}") from error
        except ValueError as error:
            raise ConfigurationError(f"database is not a PostgreSQL address: {_told(error)}") from None
        async with self._connection() as connection:
            await self._check_durability(connection)
        if self.settings.migrate == "auto":
            await self.migrate()
        await self._make_partitions()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), self.settings.claim_timeout)
            except TimeoutError:
                pool.terminate()

    async def ping(self) -> None:
        async with self._connection() as connection:
            if await connection.fetchval("SELECT pg_is_in_recovery()"):
                raise StoreUnavailable("PostgreSQL is read-only here: it is a standby")

    async def _check_durability(self, connection: Connection) -> None:
        for name in ("fsync", "synchronous_commit"):
            if await connection.fetchval(f"SHOW {name}") == "off" and not self.settings.unsafe_durability:
                raise ConfigurationError(
                    f"PostgreSQL runs with {name} = off: an acked event could be lost. Turn it on, "
                    f"or set unsafe_durability = true if that is acceptable here"
                )

    # -- the door -------------------------------------------------------------------------------------------------

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        ids = await self._draw_ids(len(claims))
        outcome: dict[int, Claimed] = {}
        left = list(zip(ids, claims, strict=True))
        while left:  # a second round only for a receipt that was pruned between the two statements
            await self._claim_surely(left, outcome)
            left = [pair for pair in left if pair[0] not in outcome]
        return [outcome[id] for id in ids]

    async def _claim_surely(self, offered: Sequence[tuple[int, Claim]], outcome: dict[int, Claimed]) -> None:
        """`_claim_once`, repeated with the same ids while it is unknown or undone, until the claim's time is up."""
        pause, deadline = 0.01, self.clock.monotonic() + self.settings.claim_timeout
        while True:
            try:
                return await self._claim_once(offered, outcome)
            except asyncpg.CheckViolationError as error:
                if error.constraint_name:
                    raise RowRefused(f"PostgreSQL refuses a row: {error.constraint_name}") from error
                await self._make_partitions()  # no partition for today: a server that ran past midnight for a week
                continue
            except REFUSED as error:
                raise RowRefused(f"PostgreSQL refuses a row: {type(error).__name__}") from error
            except (*LOST, *AGAIN) as error:
                if self.clock.monotonic() + pause > deadline:
                    raise StoreUnavailable(f"PostgreSQL: {_told(error)}") from error
            except asyncpg.PostgresError as error:
                raise StoreUnavailable(f"PostgreSQL: {_told(error)}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _claim_once(self, offered: Sequence[tuple[int, Claim]], outcome: dict[int, Claimed]) -> None:
        async with self._pool_or_raise().acquire(timeout=self.settings.claim_timeout) as connection:
            rows = await connection.fetch(self.sql["claim"], *_columns(offered))
            fresh = {row[0] for row in rows}
            for id, claim in offered:
                if id in fresh:
                    outcome[id] = Claimed(id, True, claim.status)
            known = [(id, claim) for id, claim in offered if id not in fresh]
            if known:
                await self._look_up(connection, known, outcome)

    async def _look_up(
        self, connection: Connection, known: Sequence[tuple[int, Claim]], outcome: dict[int, Claimed]
    ) -> None:
        rows = await connection.fetch(
            self.sql["claimed_before"], [c.source for _, c in known], [c.event_id for _, c in known]
        )
        before = {(row["source"], row["event_id"]): row for row in rows}
        for id, claim in known:
            row = before.get((claim.source, claim.event_id))
            if row is not None:  # its own id: the first try was committed and only the reply was lost
                outcome[id] = Claimed(
                    row["id"], row["id"] == id, State(row["status"]), row["fingerprint"] == claim.fingerprint
                )

    async def _draw_ids(self, count: int) -> list[int]:
        while len(self._ids) < count:
            async with self._connection() as connection:
                rows = await connection.fetch(self.sql["receipt_ids"], max(ID_BLOCK, count))
            self._ids = [row[0] for row in reversed(rows)] + self._ids
        return [self._ids.pop() for _ in range(count)]

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        async with self._connection() as connection:
            await connection.execute(
                self.sql["note_duplicate"],
                [d.receipt for d in duplicates],
                [d.delivery_id for d in duplicates],
                [d.fingerprint for d in duplicates],
                [d.same_body for d in duplicates],
                DUPLICATES_KEPT,
            )

    # -- looking --------------------------------------------------------------------------------------------------

    async def find(self, wanted: Filter, *, limit: int, before: tuple[str, int] | None = None) -> list[Receipt]:
        return await self._find(_parameters(wanted, before) | {"limit": limit})

    async def get(self, receipt: int) -> Receipt | None:
        found = await self._find({"receipt": receipt, "limit": 1})
        return found[0] if found else None

    async def _find(self, parameters: dict[str, Any]) -> list[Receipt]:
        rows = await self._read(queries.with_given(self.sql["find"], set(parameters)), parameters)
        return [Receipt(**{**dict(row), "status": State(row["status"])}) for row in rows]

    async def payload(self, receipt: int) -> Payload | None:
        rows = await self._read(self.sql["payload"], {"receipt": receipt})
        return Payload(rows[0]["body"], msgspec.json.decode(rows[0]["headers"])) if rows else None

    async def duplicates(self, receipt: int) -> list[dict[str, Any]]:
        return [_plain(row) for row in await self._read(self.sql["duplicates"], {"receipt": receipt})]

    async def counts(self) -> list[dict[str, Any]]:
        rows = await self._read(self.sql["counts"], {})
        return [_plain(row) for row in [*rows, *await self._read(self.sql["counts_duplicates"], {})]]

    async def _read(self, sql: str, parameters: dict[str, Any]) -> list[Any]:
        text, names = queries.numbered(sql)
        async with self._connection() as connection:
            return list(await connection.fetch(text, *(parameters[name] for name in names)))

    # -- migrations and partitions --------------------------------------------------------------------------------

    async def pending_migrations(self) -> list[tuple[int, str, str]]:
        async with self._connection() as connection:
            applied = await self._applied(connection)
        return [migration for migration in queries.migrations("postgres") if migration[0] not in applied]

    async def _applied(self, connection: Connection) -> set[int]:
        try:
            return {row[0] for row in await connection.fetch(self.sql["applied_migrations"])}
        except asyncpg.UndefinedTableError:
            return set()

    async def migrate(self) -> list[str]:
        done = []
        async with self._connection() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(self.sql["create_migrations"])
            applied = await self._applied(connection)
            for number, name, sql in queries.migrations("postgres"):
                if number not in applied:
                    await connection.execute(sql)
                    await connection.execute(self.sql["record_migration"], number, name)
                    done.append(f"{number:03d}_{name}")
        return done

    async def _make_partitions(self) -> None:
        """Have a partition of payloads for every day from yesterday to a week ahead.

        LIKE and ATTACH take no lock that a claim waits for; CREATE … PARTITION OF would.
        """
        async with self._connection() as connection:
            there = {row["name"] for row in await connection.fetch(self.sql["payload_partitions"])}
            today = await connection.fetchval(self.sql["today"])
            missing = [d for n in range(-1, DAYS_AHEAD + 1) if _partition(d := today + timedelta(days=n)) not in there]
            for day in missing:
                await self._make_partition(connection, day)

    async def _make_partition(self, connection: Connection, day: date) -> None:
        name = _partition(day)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            there = {row["name"] for row in await connection.fetch(self.sql["payload_partitions"])}
            if name in there:
                return
            await connection.execute(f"CREATE TABLE IF NOT EXISTS {name} (LIKE webhook_payloads INCLUDING ALL)")
            await connection.execute(
                f"ALTER TABLE webhook_payloads ATTACH PARTITION {name} "
                f"FOR VALUES FROM ('{day}') TO ('{day + timedelta(days=1)}')"
            )

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _pool_or_raise(self) -> "asyncpg.Pool[Any]":
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        return self._pool

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection; what goes wrong on it is Unavailable."""
        try:
            async with self._pool_or_raise().acquire(timeout=self.settings.claim_timeout) as connection:
                yield connection
        except (*LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {_told(error)}") from error


async def _keep_as_it_is(connection: Any) -> None:
    """asyncpg would reset the session with a round trip on every release; nothing here changes the session."""


def _columns(offered: Sequence[tuple[int, Claim]]) -> tuple[list[Any], ...]:
    """The rows of a claim as the arrays that `unnest` takes."""
    claims = [claim for _, claim in offered]
    return (
        [id for id, _ in offered],
        [c.source for c in claims],
        [c.provider for c in claims],
        [c.event_id for c in claims],
        [c.type for c in claims],
        [c.object_id for c in claims],
        [c.delivery_id for c in claims],
        [c.occurred_at for c in claims],
        [c.correlation_id for c in claims],
        [c.status for c in claims],
        [c.last_error for c in claims],
        [c.fingerprint for c in claims],
        [c.body for c in claims],
        [c.headers for c in claims],
    )


def _partition(day: date) -> str:
    return f"webhook_payloads_{day:%Y%m%d}"


def _parameters(wanted: Filter, before: tuple[str, int] | None) -> dict[str, Any]:
    given: dict[str, Any] = {
        "source": wanted.source,
        "type": None if wanted.type is None else glob_to_regex(wanted.type),
        "object": wanted.object,
        "status": wanted.status,
        "since": wanted.since,
        "until": wanted.until,
        "search": wanted.search,
    }
    if before is not None:
        given |= {"before_time": moment(before[0]), "before_receipt": before[1]}
    return {name: value for name, value in given.items() if value is not None}


def glob_to_regex(pattern: str) -> str:
    """A type pattern as PostgreSQL's regular expression: `*` and `?`, and a match as a dotted prefix too."""
    wild = {"*": ".*", "?": "."}
    return "^(" + "".join(wild.get(c) or re.sub(r"(\W)", r"\\\1", c) for c in pattern) + r")(\..*)?$"


def _plain(row: Any) -> dict[str, Any]:
    from oncehook.receipt import rfc3339

    return {name: rfc3339(value) if isinstance(value, datetime) else value for name, value in dict(row).items()}


def _told(error: BaseException) -> str:
    """What may be told of a driver's error: its kind and the server's own sentence, never a value or an address."""
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0]).splitlines()[0]
    return type(error).__name__
