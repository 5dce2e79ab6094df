"""SQLite: the standard `sqlite3`, one writer thread, WAL, `synchronous=FULL`, `BEGIN IMMEDIATE`.

Every write of the process but a handler's own goes through one connection in one thread. The writer and the handlers'
transactions take turns (`SqliteFile.turn`), so that neither polls a file that its own process has locked. Reads use
connections of their own and never block the writer. Only the writer checkpoints.
"""

import asyncio
import os
import queue
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, RowRefused, StoreUnavailable
from oncehook.store import queries
from oncehook.store.sqlite.dialect import database_path

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

BUSY_MS = 5000
"""How long another process may hold the write lock before a claim is answered 503."""

PING_SECONDS = 1.4
"""How long a check waits for the write lock: one that is held longer would make deliveries wait."""

LOCKED = "database is locked"


class SqliteFile:
    """The file, its writer, and the schema in it."""

    def __init__(self, settings: Settings) -> None:
        self.path = database_path(settings.database)
        self.settings = settings
        self.sql = queries.load("sqlite")
        self.turn = threading.Lock()
        """Held by the thread of this process that writes: a thread that waits for it is woken, where SQLite would sleep
        for up to 100 ms and look again. A handler's transaction has it for its length."""
        self._writer: Writer | None = None

    # -- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._writer = Writer(self.path, min(BUSY_MS / 1000, self.settings.claim_timeout / 2), self.turn)
        await self.write(lambda connection: None)  # connecting is the first piece of work

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.stop)

    async def ping(self) -> None:
        """Take the write lock for a moment. Not by the writer: what waits there for the lock would make this wait."""
        if self._writer is None:
            raise StoreUnavailable("the store is not open")

        def lock() -> None:
            address = f"file:{_quoted(self.path)}?mode=rw"
            connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=PING_SECONDS)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            finally:
                connection.close()

        try:
            await asyncio.to_thread(lock)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"SQLite cannot write to {self.path}: {error}") from error

    async def risks(self) -> list[str]:
        return await asyncio.to_thread(_readable_by_others, self.path)

    # -- plumbing -------------------------------------------------------------------------------------------------

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
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

    async def read(self, sql: str, parameters: Mapping[str, Any]) -> list[sqlite3.Row]:
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

    def __init__(self, path: Path, busy_seconds: float, turn: threading.Lock) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self.turn = turn
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
            is_ours = self.turn.acquire(timeout=self.busy_seconds)
            try:
                if not is_ours:
                    raise sqlite3.OperationalError(LOCKED)
                connection = connection or _connect(self.path, self.busy_seconds)
                result = work(connection)
            except BaseException as error:  # whatever it is, it belongs to the waiter, and the thread goes on
                failure = error
                connection = _rolled_back(connection)
            finally:
                if is_ours:
                    self.turn.release()
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


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A connection with the pragmas of a durable inbox."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # only a new file: closing one that SQLite has open would drop SQLite's locks
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite gives -wal and -shm the same mode
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_seconds)
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


def _readable_by_others(path: Path) -> list[str]:
    """A sentence, if any user of this machine may read the payloads."""
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    if os.name == "nt" or not any(file.exists() and file.stat().st_mode & stat.S_IROTH for file in files):
        return []
    return [f"{path}: every user of this machine can read it, with all payloads: chmod o= {path}*"]


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
