"""What only SQLite has: its pragmas, its one write lock, its file, and a disk that can be full."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store import make_store, queries
from oncehook.store.pauses import handled_parameters
from oncehook.store.sqlite import file as sqlite
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import ask

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder' / 'a %20#? b.db'}"


@pytest.fixture
async def store(address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(sqlite, "BUSY_MS", 200)
    store = make_store(Settings(database=address))
    await store.open()
    yield store
    await store.close()


async def pragma(store: Store, name: str) -> object:
    """A pragma as the writer's own connection has it."""
    return await store.database.file.write(lambda connection: connection.execute(f"PRAGMA {name}").fetchone()[0])


async def test_the_file_is_in_wal_mode_can_shrink_and_commits_are_synced(store: Store, address: str) -> None:
    assert ask(address, "PRAGMA journal_mode") == [("wal",)]
    assert ask(address, "PRAGMA auto_vacuum") == [(2,)]  # incremental
    assert await pragma(store, "synchronous") == 2  # full


async def test_a_file_that_lost_payloads_can_be_made_smaller(store: Store, address: str) -> None:
    await store.claims.insert([make_claim(f"evt_{n}", body=b"x" * 50_000) for n in range(40)])
    ask(address, "DELETE FROM webhook_payloads")
    ask(address, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = store.database.file.path.stat().st_size
    shrink = sqlite3.connect(store.database.file.path)
    shrink.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
    shrink.close()
    assert store.database.file.path.stat().st_size < before / 4


# -- the write lock -------------------------------------------------------------------------------------------------


@contextmanager
def write_lock_held_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds the write lock for the length of a block."""
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


async def test_a_write_lock_held_elsewhere_is_unavailable_after_the_busy_time_and_then_over(store: Store) -> None:
    with write_lock_held_elsewhere(store.database.file.path):
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.claims.insert([make_claim("evt_1")])
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.ping()
        assert await store.receipts.get(1) is None  # who only looks does not wait
    await store.ping()
    assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh


async def test_a_claim_waits_out_a_lock_that_is_short(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.close()
    monkeypatch.setattr(sqlite, "BUSY_MS", 20_000)
    await store.open()
    with write_lock_held_elsewhere(store.database.file.path):
        claiming = asyncio.create_task(store.claims.insert([make_claim("evt_1")]))
        done, _ = await asyncio.wait([claiming], timeout=0.3)
        assert not done
    assert (await claiming)[0].fresh


async def test_an_open_reader_does_not_hold_up_a_claim(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1")])
    reader = sqlite3.connect(store.database.file.path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM webhook_receipts").fetchone() == (1,)
    assert (await store.claims.insert([make_claim("evt_2")]))[0].fresh
    assert reader.execute("SELECT count(*) FROM webhook_receipts").fetchone() == (1,)
    reader.close()


# -- the file -------------------------------------------------------------------------------------------------------


async def test_a_full_disk_is_unavailable_leaves_nothing_half_done_and_then_over(store: Store, address: str) -> None:
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
    assert ask(address, "SELECT count(*) FROM webhook_receipts") == [(taken,)]
    assert ask(address, "SELECT count(*) FROM webhook_payloads") == [(taken,)]
    await pragma(store, "max_page_count = 1000000")
    assert (await store.claims.insert([make_claim("large", body=b"x" * 100_000)]))[0].fresh
    assert ask(address, "PRAGMA integrity_check") == [("ok",)]


async def test_a_connection_that_breaks_is_replaced_by_one_as_durable(store: Store) -> None:
    def break_it(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.close()
        connection.execute("SELECT 1")

    with pytest.raises(StoreUnavailable):
        await store.database.file.write(break_it)
    assert (await store.claims.insert([make_claim()]))[0].fresh
    assert await pragma(store, "synchronous") == 2


async def test_work_that_fails_leaves_no_transaction_open(store: Store) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM webhook_migrations")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.database.file.write(fail)
    assert await store.schema.pending() == []
    await store.ping()


async def test_a_cancelled_wait_does_not_cancel_the_claim(store: Store) -> None:
    waiting = asyncio.create_task(store.claims.insert([make_claim("evt_1")]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not (await store.claims.insert([make_claim("evt_1")]))[0].fresh


@pytest.mark.parametrize("address", ["sqlite:///:memory:", "sqlite://", "sqlite:///", "sqlite:x.db"])
def test_an_address_without_a_file_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="SQLite needs a file"):
        make_store(Settings(database=address))


@pytest.mark.parametrize("place", ["no-database.txt", "no-database.txt/below.db", "."])
async def test_a_place_that_cannot_hold_the_inbox_is_unavailable(tmp_path: Path, place: str) -> None:
    (tmp_path / "no-database.txt").write_text("This is a letter to a friend, and not a database. " * 50)
    store = make_store(Settings(database=f"sqlite:///{tmp_path / place}"))
    with pytest.raises(StoreUnavailable):
        await store.open()
    with pytest.raises(StoreUnavailable):
        await store.ping()


async def test_claims_and_handlers_of_one_process_take_turns_and_do_not_poll_the_file(store: Store) -> None:
    """SQLite's own waiting is turned off: whoever met a lock on the file would fail at once."""
    await store.database.file.write(lambda connection: connection.execute("PRAGMA busy_timeout = 0"))
    for number in range(20):
        handler = store.transaction()
        await (await handler.connection()).execute("CREATE TABLE IF NOT EXISTS ledger (event_id TEXT)")
        claiming = asyncio.create_task(store.claims.insert([make_claim(f"evt_{number}")]))
        await asyncio.sleep(0)  # it is queued
        assert store.database.file._writer is not None
        while not store.database.file._writer.queue.empty():
            await asyncio.sleep(0.001)
        await handler.rollback()
        assert (await claiming)[0].fresh


async def test_the_hot_queries_go_by_an_index(store: Store, address: str) -> None:
    await store.claims.insert([make_claim()])
    given = {"object": "in_1", "limit": 50, "before_time": "2026", "before_receipt": 9, "receipt": 1}
    given |= {"worker": "w", "seconds": 30, "rescued": 0, "floor": "", "after": "", "size": 9}
    given |= {"source": "", "key": "", "most": 9, "type": "", "types": "[]", "last": "", "reason": ""}
    given |= {"last_source": "", "last_key": "", **handled_parameters(SQLITE, None)}

    def plan(sql: str) -> str:
        with sqlite3.connect(store.database.file.path) as connection:
            found = " / ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", given))
        connection.close()
        return found

    find = store.sql["find_receipts"]
    before = store.sql["claimed_before"].replace("?", "'x'")
    assert "USING INDEX sqlite_autoindex_webhook_receipts_1 (source=? AND event_id=?)" in plan(before)
    assert "webhook_receipts_object" in plan(queries.with_parameters(find, {"object", "limit"}))
    assert "webhook_receipts_received" in plan(queries.with_parameters(find, {"limit"}))
    assert "webhook_receipts_received (received_at<?)" in plan(
        queries.with_parameters(find, {"before_receipt", "limit"})
    )
    assert "PRIMARY KEY" in plan(queries.with_parameters(find, {"receipt", "limit"}))
    for name in ("lease", "due_window"):
        assert "webhook_receipts_due (<expr>>? AND <expr><?)" in plan(store.sql[name])
    for name in ("waiting_types", "hold_unhandled"):
        assert "webhook_receipts_due (<expr>>? AND <expr><?)" in plan(store.sql[name])
    for name in ("waiting_serial_types", "hold_unhandled_serial"):
        assert "webhook_receipts_serial_waiting" in plan(store.sql[name])
    for name in ("unhandled_types", "release_unhandled", "ignore_unhandled", "unhandled"):
        assert "webhook_receipts_unhandled" in plan(store.sql[name])
        assert "SCAN webhook_receipts " not in plan(store.sql[name]).replace("SCAN webhook_receipts USING", "")
