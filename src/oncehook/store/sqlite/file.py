"""The SQLite file: the standard `sqlite3`, one writer thread, WAL, `synchronous=FULL`, `BEGIN IMMEDIATE`.

All writes of the process, except those of handlers, use one connection in one thread. The writer and the handlers'
transactions share a lock (`SqliteFile.write_lock`), so that neither polls a file that its own process has locked. Each
read uses a new connection and never blocks the writer. Only the writer checkpoints.
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
"""For how many milliseconds another process may hold the write lock before a delivery is answered 503."""

PING_SECONDS = 1.4
"""For how many seconds a health check waits for the write lock. A lock held longer would delay deliveries."""

LOCKED = "database is locked"


class SqliteFile:
    """A database file and its writer thread."""

    def __init__(self, settings: Settings) -> None:
        self.path = database_path(settings.database)
        self.settings = settings
        self.sql = queries.load("sqlite")
        self.write_lock = threading.Lock()
        """Held by the thread of this process that writes. A waiting thread is woken when it is free, where SQLite would
        sleep up to 100 ms before it tries again. A handler's transaction holds it until its end."""
        self._writer: Writer | None = None

    # -- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._writer = Writer(self.path, min(BUSY_MS / 1000, self.settings.claim_timeout / 2), self.write_lock)
        await self.write(lambda connection: None)  # makes the writer connect

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.stop)

    async def ping(self) -> None:
        """Acquire and release the write lock of the file. Does not wait for the writer's queue."""
        if self._writer is None:
            raise StoreUnavailable("the store is not open")

        def lock() -> None:
            address = f"file:{_quote(self.path)}?mode=rw"
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
        return await asyncio.to_thread(_permission_risks, self.path)

    # -- statements -----------------------------------------------------------------------------------------------

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
            raise RowRefused(f"SQLite rejected a row: {type(error).__name__}") from error
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"SQLite cannot write to {self.path}: {error}") from error

    async def read(self, sql: str, parameters: Mapping[str, Any]) -> list[sqlite3.Row]:
        def read() -> list[sqlite3.Row]:
            connection = sqlite3.connect(f"file:{_quote(self.path)}?mode=ro", uri=True, timeout=BUSY_MS / 1000)
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
    """The thread that writes. It rolls back the transaction of work that fails."""

    def __init__(self, path: Path, busy_seconds: float, write_lock: threading.Lock) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self.write_lock = write_lock
        self.pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self.queue: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="oncehook-sqlite-writer", daemon=True)
        self.thread.start()

    async def run(self, work: Work) -> Any:
        """Run `work` in the writer's thread. Cancelling the caller does not cancel the work."""
        if self.pid != os.getpid():
            raise StoreUnavailable("the store was opened before a fork: open it in the process that uses it")
        future = asyncio.get_running_loop().create_future()
        self.queue.put((work, future))
        return await asyncio.shield(future)

    def stop(self) -> None:
        """Finish the queued work, checkpoint and close."""
        self.queue.put(None)
        self.thread.join()

    def _serve(self) -> None:
        while (item := self.queue.get()) is not None:
            work, future = item
            _deliver(future, *self.execute(work))
        self.disconnect()

    def execute(self, work: Work) -> tuple[Any, BaseException | None]:
        """Run `work` now, in the writer's thread. Returns its result or its error."""
        has_lock = self.write_lock.acquire(timeout=self.busy_seconds)
        try:
            if not has_lock:
                raise sqlite3.OperationalError(LOCKED)
            self._connection = self._connection or _connect(self.path, self.busy_seconds)
            return work(self._connection), None
        except BaseException as error:  # the caller gets the error, and the thread continues
            self._connection = without_transaction(self._connection)
            return None, error
        finally:
            if has_lock:
                self.write_lock.release()

    def disconnect(self) -> None:
        """Close the connection, which checkpoints."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def without_transaction(connection: sqlite3.Connection | None) -> sqlite3.Connection | None:
    """Roll back, and return the connection. Close it and return None if that failed: its owner opens another one."""
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
            future.exception()  # if its caller was cancelled, nothing awaits the error, and asyncio would print it

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the loop is closed, so there is no waiter


def _use_wal(connection: sqlite3.Connection) -> str:
    """Switch to WAL, with retries: if several processes do so at once on a new file, SQLite fails in all but one."""
    deadline = SYSTEM.monotonic() + BUSY_MS / 1000
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError:
            if SYSTEM.monotonic() > deadline:
                raise
            time.sleep(0.01)  # in the writer's thread
        else:
            return mode


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open the writer's connection, with durable commits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # closing an existing file would drop the locks of SQLite
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite creates -wal and -shm with the same mode
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_seconds)
    try:
        # This pragma takes effect only before the first table is created.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    if mode != "wal":
        connection.close()
        raise ConfigurationError(
            f"database: SQLite cannot use WAL for this file (journal mode: {mode}); use a file on a local disk"
        )
    return connection


def _permission_risks(path: Path) -> list[str]:
    """Return a sentence if all users of this machine can read the payloads."""
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    if os.name == "nt" or not any(file.exists() and file.stat().st_mode & stat.S_IROTH for file in files):
        return []
    return [f"{path}: all users of this machine can read it, including the payloads. Run: chmod o= {path}*"]


def _quote(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
