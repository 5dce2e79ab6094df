"""SQLite: the standard `sqlite3`, one writer thread, WAL, `synchronous=FULL`, `BEGIN IMMEDIATE`.

Every write of the process goes through one connection in one thread, so nothing here waits for a lock of its own
process. Reads use connections of their own and never block the writer. Only the writer checkpoints.
"""

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from oncehook.clock import SYSTEM
from oncehook.errors import ConfigurationError, RowRefused, StoreUnavailable
from oncehook.extract import moment
from oncehook.receipt import Claim, Claimed, Duplicate, Filter, Payload, Receipt, State, rfc3339
from oncehook.settings import Settings
from oncehook.store import DUPLICATES_KEPT, queries

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

ROWS_AT_ONCE = (256, 64, 16, 4, 1)
"""The sizes of INSERT statements: few sizes, so that SQLite's cache of prepared statements holds them all."""

BUSY_MS = 5000
"""How long another process may hold the write lock before a claim is answered 503."""


class SqliteStore:
    """The Store of `sqlite:///file.db`."""

    parallel_claims = 1

    def __init__(self, settings: Settings) -> None:
        self.path = database_path(settings.database)
        self.settings = settings
        self.sql = queries.load("sqlite")
        self._writer: Writer | None = None

    # -- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._writer = Writer(self.path)
        try:
            await self._write(lambda connection: None)  # connecting is the first piece of work
            if self.settings.migrate == "auto":
                await self.migrate()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.stop)

    async def ping(self) -> None:
        await self._write(lambda connection: connection.execute("BEGIN IMMEDIATE").connection.rollback())

    # -- the door -------------------------------------------------------------------------------------------------

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        return await self._write(lambda connection: self._claim(connection, claims))

    def _claim(self, connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[Claimed]:
        """Few, large statements: `sqlite3` gives up the GIL at each, and the event loop is slow to give it back."""
        connection.execute("BEGIN IMMEDIATE")
        (last,) = connection.execute(self.sql["last_receipt"]).fetchone()
        offered = list(enumerate(claims, last + 1))  # nobody else can draw ids before our COMMIT
        inserted = _insert_rows(connection, self.sql["claim"], [_receipt_row(id, claim) for id, claim in offered])
        if inserted == len(claims):
            fresh = offered
        else:
            rows = connection.execute(self.sql["fresh_receipts"], (last,))
            new = {row[0] for row in rows}
            fresh = [(id, claim) for id, claim in offered if id in new]
        _insert_rows(connection, self.sql["claim_payload"], [(id, claim.body, claim.headers) for id, claim in fresh])
        outcome = {id: Claimed(id, True, claim.status, claim.fingerprint) for id, claim in fresh}
        for id, claim in offered:
            if id not in outcome:
                outcome[id] = self._look_up(connection, claim)
        connection.execute("COMMIT")
        return list(map(outcome.__getitem__, range(last + 1, last + 1 + len(claims))))

    def _look_up(self, connection: sqlite3.Connection, claim: Claim) -> Claimed:
        before = connection.execute(self.sql["claimed_before"], (claim.source, claim.event_id)).fetchone()
        return Claimed(before[0], False, State(before[1]), before[2], before[2] == claim.fingerprint)

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        rows = [
            {
                "receipt": d.receipt,
                "delivery_id": d.delivery_id,
                "fingerprint": d.fingerprint,
                "same_body": d.same_body,
                "most": DUPLICATES_KEPT,
            }
            for d in duplicates
        ]
        await self._write(lambda connection: _in_transaction(connection, self.sql["note_duplicate"], rows))

    # -- looking --------------------------------------------------------------------------------------------------

    async def find(self, wanted: Filter, *, limit: int, before: tuple[str, int] | None = None) -> list[Receipt]:
        return await self._find(_parameters(wanted, before) | {"limit": limit})

    async def get(self, receipt: int) -> Receipt | None:
        found = await self._find({"receipt": receipt, "limit": 1})
        return found[0] if found else None

    async def _find(self, parameters: dict[str, Any]) -> list[Receipt]:
        sql = queries.with_given(self.sql["find"], set(parameters))
        return [_receipt(row) for row in await self._read(sql, parameters)]

    async def payload(self, receipt: int) -> Payload | None:
        rows = await self._read(self.sql["payload"], {"receipt": receipt})
        return Payload(rows[0]["body"], msgspec.json.decode(rows[0]["headers"])) if rows else None

    async def duplicates(self, receipt: int) -> list[dict[str, Any]]:
        rows = await self._read(self.sql["duplicates"], {"receipt": receipt})
        return [{**dict(row), "same_body": bool(row["same_body"])} for row in rows]

    async def counts(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in await self._read(self.sql["counts"], {})]
        return rows + [dict(row) for row in await self._read(self.sql["counts_duplicates"], {})]

    # -- migrations -----------------------------------------------------------------------------------------------

    async def pending_migrations(self) -> list[tuple[int, str, str]]:
        def pending(connection: sqlite3.Connection) -> list[tuple[int, str, str]]:
            try:
                applied = {row[0] for row in connection.execute(self.sql["applied_migrations"])}
            except sqlite3.OperationalError:
                applied = set()
            return [migration for migration in queries.migrations("sqlite") if migration[0] not in applied]

        return await self._write(pending)

    async def migrate(self) -> list[str]:
        return await self._write(self._migrate)

    def _migrate(self, connection: sqlite3.Connection) -> list[str]:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(self.sql["create_migrations"])
        applied = {row[0] for row in connection.execute(self.sql["applied_migrations"])}
        done = []
        for number, name, sql in queries.migrations("sqlite"):
            if number not in applied:
                for statement in _statements(sql):
                    connection.execute(statement)
                connection.execute(self.sql["record_migration"], {"number": number, "name": name})
                done.append(f"{number:03d}_{name}")
        connection.execute("COMMIT")
        return done

    # -- plumbing -------------------------------------------------------------------------------------------------

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise StoreUnavailable("the store is not open")
        try:
            return await self._writer.run(work)  # type: ignore[no-any-return]
        except (
            sqlite3.IntegrityError,
            sqlite3.DataError,
            sqlite3.InterfaceError,
            UnicodeError,
            OverflowError,
        ) as error:
            raise RowRefused(f"SQLite refuses a row: {type(error).__name__}") from error
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"SQLite cannot write to {self.path}: {error}") from error

    async def _read(self, sql: str, parameters: dict[str, Any]) -> list[sqlite3.Row]:
        def read() -> list[sqlite3.Row]:
            connection = sqlite3.connect(f"file:{_quoted(self.path)}?mode=ro", uri=True, timeout=BUSY_MS / 1000)
            try:
                connection.row_factory = sqlite3.Row
                return connection.execute(sql, parameters).fetchall()
            finally:
                connection.close()

        try:
            return await asyncio.to_thread(read)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.path} cannot be read: {error}") from error


class Writer:
    """The one thread that writes. A piece of work that fails leaves no transaction open behind it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = os.getpid()
        self.queue: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="oncehook-sqlite-writer", daemon=True)
        self.thread.start()

    async def run(self, work: Work) -> Any:
        """Do `work` in the writer's thread. Cancelling the wait does not cancel the work."""
        if self.pid != os.getpid():
            raise StoreUnavailable("the store was opened before a fork: open it in the process that uses it")
        future = asyncio.get_running_loop().create_future()
        self.queue.put((work, future))
        return await asyncio.shield(future)

    def stop(self) -> None:
        """Finish what is queued, checkpoint and close."""
        self.queue.put(None)
        self.thread.join()

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        while (item := self.queue.get()) is not None:
            work, future = item
            result: Any = None
            failure: BaseException | None = None
            try:
                connection = connection or _connect(self.path)
                result = work(connection)
            except BaseException as error:  # whatever it is, it belongs to the waiter, and the thread goes on
                failure = error
                connection = _rolled_back(connection)
            _deliver(future, result, failure)
        if connection is not None:
            connection.close()


def _rolled_back(connection: sqlite3.Connection | None) -> sqlite3.Connection | None:
    """The connection without an open transaction, or None where even that failed: then it is opened anew."""
    if connection is None:
        return None
    try:
        if connection.in_transaction:
            connection.rollback()
    except sqlite3.Error:
        connection.close()
        return None
    return connection


def _deliver(future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


def _use_wal(connection: sqlite3.Connection) -> str:
    """Switch to WAL. Of several that start on a new file at once, SQLite refuses all but one instead of waiting."""
    deadline = SYSTEM.monotonic() + BUSY_MS / 1000
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError:
            if SYSTEM.monotonic() > deadline:
                raise
            time.sleep(0.01)  # in the writer's own thread
        else:
            return mode


def _connect(path: Path) -> sqlite3.Connection:
    """A connection with the pragmas of a durable inbox."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
    try:
        # This counts only before the first table, so it comes first.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    if mode != "wal":
        connection.close()
        raise ConfigurationError(f"database: SQLite cannot use WAL here (it says {mode}); use a file on a local disk")
    return connection


def _receipt_row(id: int, claim: Claim) -> tuple[Any, ...]:
    return (
        id, claim.source, claim.provider, claim.event_id, claim.type, claim.object_id, claim.delivery_id,
        rfc3339(claim.occurred_at), claim.correlation_id, claim.status, claim.last_error, claim.fingerprint,
    )  # fmt: skip


def _insert_rows(connection: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert all of them in few statements, and return how many were new."""
    inserted, start = 0, 0
    for size in ROWS_AT_ONCE:
        while len(rows) - start >= size:
            values = [value for row in rows[start : start + size] for value in row]
            inserted += connection.execute(_with_rows(sql, size, len(rows[start])), values).rowcount
            start += size
    return inserted


@cache
def _with_rows(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.replace(":rows", ", ".join([row] * rows))


def _in_transaction(connection: sqlite3.Connection, sql: str, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(sql, rows)
    connection.execute("COMMIT")


def _statements(sql: str) -> list[str]:
    """A migration's statements, one by one: `executescript` would commit before the first."""
    statements, current = [], ""
    for line in sql.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def database_path(address: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    rest = address.removeprefix("sqlite:///")
    if rest == address or not rest or rest == ":memory:":
        raise ConfigurationError(
            "database: SQLite needs a file, such as sqlite:///oncehook.db (relative) or sqlite:////var/lib/oncehook.db"
        )
    return Path(rest)


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _parameters(wanted: Filter, before: tuple[str, int] | None) -> dict[str, Any]:
    given: dict[str, Any] = {
        "source": wanted.source,
        "type": None if wanted.type is None else wanted.type.replace("[!", "[^"),
        "object": wanted.object,
        "status": wanted.status,
        "since": rfc3339(wanted.since),
        "until": rfc3339(wanted.until),
        "search": wanted.search,
        "event_id": wanted.event_id,
    }
    if before is not None:
        given |= {"before_time": before[0], "before_receipt": before[1]}
    return {name: value for name, value in given.items() if value is not None}


def _receipt(row: sqlite3.Row) -> Receipt:
    values = dict(row)
    for name in ("occurred_at", "received_at", "next_attempt_at", "processed_at"):
        values[name] = moment(values[name])
    return Receipt(**values | {"status": State(values["status"])})
