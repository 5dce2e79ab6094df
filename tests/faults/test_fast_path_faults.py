"""The fast path of duplicates, while servers fail over, are restored, and Redis is killed, flushed, paused or lies."""

import asyncio
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncehook.brokers import redis_cache
from tests.support.fast_path import FastInbox, fast_inbox
from tests.support.proxy import proxied
from tests.support.redis_server import RedisServer, lying_redis, private_redis
from tests.support.servers import Postgres, private_postgres, run_sql
from tests.support.standbys import following
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ACCEPTED, DUPLICATE = (202, "accepted"), (200, "duplicate")


async def send_twice(fast: FastInbox, event_id: str) -> list[tuple[int, str]]:
    return [(await fast.send(event_id)).outcome, (await fast.send(event_id)).outcome]


def events(address: str) -> dict[str, int]:
    """How many receipts each event has."""
    sql = "SELECT event_id, count(*) FROM webhook_receipts GROUP BY event_id"
    return {event_id: int(count) for event_id, count in run_sql(address, sql)}


@pytest.mark.torture
async def test_event_that_a_failover_lost_is_accepted_when_it_is_delivered_again() -> None:
    """An asynchronous standby lacks the last events. Memory and Redis remember them, and must not answer for them."""
    with private_redis() as cache, private_postgres() as primary:
        address = primary.database()
        async with following(primary) as standby, proxied(address) as (proxy, through):
            async with fast_inbox(through, redis=cache.url, claim_timeout="2s") as fast:
                assert await send_twice(fast, "evt_kept") == [ACCEPTED, DUPLICATE]
                await eventually(lambda: "evt_kept" in events(standby.server.url(address.rpartition("/")[2])))
                standby.link.stall()
                assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
                await eventually(lambda: len(cache.values()) == 2, "both receipts are shared")
                await asyncio.to_thread(primary.stop, kill=True)
                await asyncio.to_thread(standby.promote)
                proxy.target = "127.0.0.1", standby.server.port
                proxy.refuse()
                proxy.accept()
                await eventually(lambda: _is_answered(fast, "evt_kept"), "the inbox uses the new primary")
                assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
            new = standby.server.url(address.rpartition("/")[2])
            assert events(new) == {"evt_kept": 1, "evt_lost": 1}


async def _is_answered(fast: FastInbox, event_id: str) -> bool:
    return (await fast.send(event_id)).outcome == DUPLICATE


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_event_that_a_restore_lost_is_accepted_when_it_is_delivered_again(
    database: str, postgres: Postgres
) -> None:
    """A backup takes the place of the database, while the process runs and Redis remembers the lost event."""
    name = database.rpartition("/")[2]
    with private_redis() as cache:
        async with proxied(database) as (proxy, through), fast_inbox(through, redis=cache.url) as fast:
            assert await send_twice(fast, "evt_kept") == [ACCEPTED, DUPLICATE]
            dump = await asyncio.to_thread(_dump, postgres, database)
            assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
            await eventually(lambda: len(cache.values()) == 2, "both receipts are shared")
            proxy.refuse()
            await asyncio.to_thread(_restore, postgres, name, dump)
            proxy.accept()
            await eventually(lambda: _is_answered(fast, "evt_kept"), "the inbox uses the restored database")
            assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
        assert events(database) == {"evt_kept": 1, "evt_lost": 1}
    postgres.drop_later(f"{database}_gone")


def _dump(server: Postgres, address: str) -> bytes:
    return subprocess.run([server.binaries / "pg_dump", address], check=True, capture_output=True, cwd="/").stdout


def _restore(server: Postgres, name: str, dump: bytes) -> None:
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    server.sql(f"ALTER DATABASE {name} RENAME TO {name}_gone")
    server.sql(f"CREATE DATABASE {name}")
    subprocess.run(
        [server.binaries / "psql", "-q", server.url(name)], input=dump, check=True, capture_output=True, cwd="/"
    )


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_event_that_a_restored_sqlite_file_lacks_is_accepted(database: str, tmp_path: Path) -> None:
    file, backup = Path(database.removeprefix("sqlite:///")), tmp_path / "backup.db"
    with private_redis() as cache:
        async with fast_inbox(database, redis=cache.url) as fast:
            await fast.send("evt_kept")
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as target:
                source.backup(target)
            assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
            await eventually(lambda: len(cache.values()) == 2, "both receipts are shared")
        assert not file.with_name(f"{file.name}-wal").exists(), "the process has ended"
        shutil.copy(backup, file)
        async with fast_inbox(database, redis=cache.url) as fast:
            assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_no_fault_of_redis_loses_or_doubles_an_event(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes get every event several times, while Redis is killed, flushed, paused and evicts."""
    monkeypatch.setattr(redis_cache, "BUDGET", 0.2)  # a busy machine must not look as a slow Redis
    chance, sent = random.Random(29), list[str]()
    with private_redis("--maxmemory", "2mb", "--maxmemory-policy", "allkeys-random") as cache:
        settings = {"redis": cache.url, "duplicate_cache": 0}
        async with fast_inbox(database, **settings) as one, fast_inbox(database, **settings) as other:
            for fault in _faults(cache):
                fault()
                new = [f"evt_{len(sent) + n}" for n in range(20)]
                storm = [event_id for event_id in (*new, *sent[-40:]) for _ in range(3)]
                chance.shuffle(storm)
                answers = await asyncio.gather(*(chance.choice((one, other)).send(event_id) for event_id in storm))
                outcomes = [answer.outcome for answer in answers]
                assert set(outcomes) == {ACCEPTED, DUPLICATE}
                assert outcomes.count(ACCEPTED) == len(new), "each new event is accepted once, and no other"
                sent += new
            assert one.hits > 0
    assert events(database) == dict.fromkeys(sent, 1)


def _faults(cache: RedisServer) -> list[Callable[[], object]]:
    def nothing() -> None:
        """Let Redis run."""

    faults = [nothing, cache.flush, cache.pause, cache.resume, nothing, cache.kill, nothing, cache.start, cache.flush]
    return [*faults, nothing]


def _as_other_receipt(chunk: bytes) -> bytes:
    """Change every value that is 56 bytes long to another one that looks the same."""
    parts = chunk.split(b"$56\r\n")
    return b"$56\r\n".join([parts[0], *(b"\0" * 7 + b"\x01" + part[8:] for part in parts[1:])])


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [_as_other_receipt, lambda chunk: chunk.replace(b"$-1\r\n", b"$4\r\nyes!\r\n"), lambda _: b"+OK\r\n" * 3],
    ids=["other receipt", "unknown keys exist", "other answers"],
)
async def test_redis_that_lies_is_not_believed(database: str, change: Callable[[bytes], bytes]) -> None:
    lies = False

    def lie(chunk: bytes) -> bytes:
        return change(chunk) if lies else chunk

    with private_redis() as cache:
        async with lying_redis(cache, lie) as url:
            settings = {"redis": url, "duplicate_cache": 0}
            async with fast_inbox(database, **settings) as one, fast_inbox(database, **settings) as other:
                first = await one.send("evt_1")
                await eventually(cache.values, "the receipt is shared")
                lies = True
                answers = await asyncio.gather(*(other.send("evt_1") for _ in range(20)), other.send("evt_2"))
                assert [answer.outcome for answer in answers] == [DUPLICATE] * 20 + [ACCEPTED]
                assert {answer.receipt for answer in answers[:-1]} == {first.receipt}
        assert events(database) == {"evt_1": 1, "evt_2": 1}


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_value_that_redis_moves_to_another_event_is_not_believed(database: str) -> None:
    with private_redis() as cache:
        settings = {"redis": cache.url, "duplicate_cache": 0}
        async with fast_inbox(database, **settings) as fast:
            await fast.send("evt_1")
            await eventually(cache.values, "the receipt is shared")
            ((key, value),) = cache.values().items()
            await fast.send("evt_2")
            await eventually(lambda: len(cache.values()) == 2, "the other receipt is shared")
            with cache.client as client:
                for other in cache.values():
                    client.set(other, value)
            await eventually(lambda: set(cache.values().values()) == {value}, "both keys have the value of evt_1")
            assert [(await fast.send(event_id)).receipt for event_id in ("evt_1", "evt_2")] == [1, 2]
            assert key in cache.values()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("later", [0, 5], ids=["at once", "after later events got the lost numbers"])
async def test_event_that_an_online_restore_of_sqlite_removed_is_accepted_again(
    database: str, tmp_path: Path, later: int
) -> None:
    file, backup = database.removeprefix("sqlite:///"), tmp_path / "backup.db"
    async with fast_inbox(database) as fast:
        await fast.send("evt_kept")
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as copy:
            source.backup(copy)
        assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as copy:
            copy.backup(source)
        for number in range(later):
            assert (await fast.send(f"evt_later_{number}")).outcome == ACCEPTED
        assert await send_twice(fast, "evt_lost") == [ACCEPTED, DUPLICATE]
        assert await send_twice(fast, "evt_kept") == [DUPLICATE, DUPLICATE]
    assert events(database)["evt_lost"] == 1
