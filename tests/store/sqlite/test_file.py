"""The SQLite file: its pragmas, its write lock, its writer, and a full disk."""

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store import make_store
from oncehook.store.sqlite import file as sqlite
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import sqlite_of
from tests.support.waiting import eventually, next_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The URL of a file that does not exist yet, with characters that URLs must quote."""
    return f"sqlite:///{tmp_path / 'folder' / 'a %20#? b.db'}"


@pytest.fixture
async def store(address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """An open store that waits for a lock of the file for only 200 ms."""
    monkeypatch.setattr(sqlite, "BUSY_MS", 200)
    store = make_store(Settings(database=address))
    await store.open()
    yield store
    await store.close()


async def pragma(store: Store, name: str) -> object:
    """The value of a pragma on the writer's connection."""
    return await sqlite_of(store).file.write(lambda connection: connection.execute(f"PRAGMA {name}").fetchone()[0])


async def test_file_uses_wal_incremental_vacuum_and_full_synchronization(store: Store, address: str) -> None:
    assert run_sql(address, "PRAGMA journal_mode") == [("wal",)]
    assert run_sql(address, "PRAGMA auto_vacuum") == [(2,)]  # incremental
    assert await pragma(store, "synchronous") == 2  # full


async def test_file_can_be_shrunk_after_payloads_were_deleted(store: Store, address: str) -> None:
    await store.claims.insert([make_claim(f"evt_{n}", body=b"x" * 50_000) for n in range(40)])
    run_sql(address, "DELETE FROM webhook_payloads")
    run_sql(address, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = sqlite_of(store).file.path.stat().st_size
    shrink = sqlite3.connect(sqlite_of(store).file.path)
    shrink.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
    shrink.close()
    assert sqlite_of(store).file.path.stat().st_size < before / 4


@contextmanager
def write_lock_held_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds the write lock inside the block."""
    script = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
        other.communicate()


async def test_claim_fails_while_another_process_holds_the_write_lock(store: Store) -> None:
    with write_lock_held_elsewhere(sqlite_of(store).file.path):
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.claims.insert([make_claim("evt_1")])
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.ping()
        assert await store.receipts.get(1) is None  # a reader does not wait
    await store.ping()
    assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh


async def test_claim_waits_for_a_short_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.close()
    monkeypatch.setattr(sqlite, "BUSY_MS", 20_000)
    await store.open()
    with write_lock_held_elsewhere(sqlite_of(store).file.path):
        claiming = asyncio.create_task(store.claims.insert([make_claim("evt_1")]))
        done, _ = await asyncio.wait([claiming], timeout=0.3)
        assert not done
    assert (await claiming)[0].fresh


async def test_open_reader_does_not_block_a_claim(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1")])
    reader = sqlite3.connect(sqlite_of(store).file.path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM webhook_receipts").fetchone() == (1,)
    assert (await store.claims.insert([make_claim("evt_2")]))[0].fresh
    assert reader.execute("SELECT count(*) FROM webhook_receipts").fetchone() == (1,)
    reader.close()


async def test_claim_on_a_full_disk_fails_and_stores_nothing(store: Store, address: str) -> None:
    pages = await pragma(store, "page_count")
    assert isinstance(pages, int)
    await pragma(store, f"max_page_count = {pages + 20}")
    taken = 0
    with pytest.raises(StoreUnavailable, match="full"):
        for number in range(10):
            batch = [make_claim(f"{number}-{part}", body=b"x" * 10_000) for part in range(3)]
            await store.claims.insert(batch)
            taken += len(batch)
    with pytest.raises(StoreUnavailable, match="full"):
        await store.claims.insert([make_claim("large", body=b"x" * 100_000)])
    assert run_sql(address, "SELECT count(*) FROM webhook_receipts") == [(taken,)]
    assert run_sql(address, "SELECT count(*) FROM webhook_payloads") == [(taken,)]
    await pragma(store, "max_page_count = 1000000")
    assert (await store.claims.insert([make_claim("large", body=b"x" * 100_000)]))[0].fresh
    assert run_sql(address, "PRAGMA integrity_check") == [("ok",)]


async def test_writer_replaces_a_broken_connection_with_a_durable_one(store: Store) -> None:
    def break_it(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.close()
        connection.execute("SELECT 1")

    with pytest.raises(StoreUnavailable):
        await sqlite_of(store).file.write(break_it)
    assert (await store.claims.insert([make_claim()]))[0].fresh
    assert await pragma(store, "synchronous") == 2


async def test_writer_rolls_back_work_that_fails(store: Store) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM webhook_migrations")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sqlite_of(store).file.write(fail)
    assert await store.schema.pending() == []
    await store.ping()


async def test_cancelled_caller_does_not_cancel_the_claim(store: Store) -> None:
    waiting = asyncio.create_task(store.claims.insert([make_claim("evt_1")]))
    await next_turn()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not (await store.claims.insert([make_claim("evt_1")]))[0].fresh


async def test_error_of_a_write_whose_caller_was_cancelled_is_not_printed(store: Store) -> None:
    """Nothing awaits it any more, so asyncio would print a traceback."""
    printed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    file, may_fail = sqlite_of(store).file, threading.Event()

    def fail(_: sqlite3.Connection) -> None:
        may_fail.wait(30)
        raise sqlite3.OperationalError("database is locked")

    task = asyncio.create_task(file.write(fail))
    await next_turn()
    task.cancel()
    await asyncio.wait([task])
    del task  # its traceback refers to the future
    may_fail.set()
    await file.write(lambda _: None)  # the writer has finished the first one
    await next_turn()
    gc.collect()
    assert printed == []


@pytest.mark.parametrize("name", ["no-database.txt", "no-database.txt/below.db", "."])
async def test_invalid_file_raises_unavailable(tmp_path: Path, name: str) -> None:
    (tmp_path / "no-database.txt").write_text("This is a letter to a friend, and not a database. " * 50)
    store = make_store(Settings(database=f"sqlite:///{tmp_path / name}"))
    with pytest.raises(StoreUnavailable):
        await store.open()
    with pytest.raises(StoreUnavailable):
        await store.ping()


async def test_claims_and_handlers_share_a_lock_instead_of_polling_the_file(store: Store) -> None:
    """SQLite's busy timeout is off, so a thread that met a lock of the file would fail immediately."""
    await sqlite_of(store).file.write(lambda connection: connection.execute("PRAGMA busy_timeout = 0"))
    for number in range(20):
        handler = store.transaction()
        await (await handler.connection()).execute("CREATE TABLE IF NOT EXISTS ledger (event_id TEXT)")
        claiming = asyncio.create_task(store.claims.insert([make_claim(f"evt_{number}")]))
        await next_turn()
        writer = sqlite_of(store).file._writer
        assert writer is not None
        await eventually(writer.queue.empty, "the writer has taken the claim and waits for the lock")
        await handler.rollback()
        assert (await claiming)[0].fresh
