"""The faults of PostgreSQL, of the connections to it, and of SQLite."""

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial

import psycopg

from proof.deliveries.fault import Fault
from proof.deliveries.world import CLAIM_SECONDS, World

TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.7
"""


async def restart_postgres(kill: bool, world: World, chance: random.Random) -> bool:
    assert world.postgres is not None
    await asyncio.to_thread(world.postgres.stop, kill=kill)
    await asyncio.sleep(chance.choice((0, 0, 0.5)))
    await asyncio.to_thread(world.postgres.start)
    return True


async def terminate_sessions(world: World, _: random.Random) -> bool:
    return bool(await asyncio.to_thread(_query, world.database, TERMINATE))


def _query(address: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


async def lose_reply(world: World, chance: random.Random) -> bool:
    """Let the server run a claim or a COMMIT, and cut the connection instead of forwarding its reply."""
    assert world.proxy is not None
    world.proxy.lose_reply(chance.choice((b"evt_", b"COMMIT")))
    with suppress(TimeoutError):
        await asyncio.wait_for(world.proxy.lost.wait(), 2)
    return world.proxy.lost.is_set()


async def partition(world: World, chance: random.Random) -> bool:
    """Forward nothing for longer than a claim may take. Then heal, or cut every connection."""
    assert world.proxy is not None
    world.proxy.stall()
    await asyncio.sleep(CLAIM_SECONDS * 1.3)
    if chance.random() < 0.5:
        world.proxy.refuse()
        await asyncio.sleep(0.3)
        world.proxy.accept()
    world.proxy.flow()
    return True


async def slow_database(world: World, chance: random.Random) -> bool:
    assert world.proxy is not None
    world.proxy.slow(chance.choice((0.05, 0.2)))
    await asyncio.sleep(2.0)
    world.proxy.slow(0.0)
    return True


async def exhaust_connections(world: World, _: random.Random) -> bool:
    """Open every connection that the server still allows, and end those of the inbox."""

    def take() -> Iterator[psycopg.Connection]:
        with suppress(psycopg.OperationalError):
            while True:
                yield psycopg.connect(world.database, autocommit=True)

    taken = await asyncio.to_thread(lambda: list(take()))
    try:
        if taken:
            await asyncio.to_thread(taken[0].execute, TERMINATE.replace("0.7", "0.3").encode())
        await asyncio.sleep(1.0)
    finally:
        for connection in taken:
            connection.close()
    return bool(taken)


async def pin_xmin(world: World, _: random.Random) -> bool:
    """Keep a snapshot open, so that no dead row can be removed."""
    connection = await asyncio.to_thread(lambda: psycopg.connect(world.database))
    with closing(connection):
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        await asyncio.to_thread(connection.execute, "SELECT count(*) FROM webhook_receipts")
        await asyncio.sleep(6.0)
    return True


async def restart_pooler(world: World, _: random.Random) -> bool:
    assert world.bouncer is not None
    await asyncio.to_thread(world.bouncer.stop)
    await asyncio.to_thread(world.bouncer.start)
    return True


@asynccontextmanager
async def _recovering(world: World) -> AsyncIterator[None]:
    """Start PostgreSQL again after the block, as a service manager does: a disk fault may end it."""
    try:
        yield
    finally:
        world.set_disk()
        server = world.postgres
        if server is not None and server.process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(_answers(world.database), 20)
            if server.process.poll() is not None:
                await asyncio.to_thread(server.start)
                await _answers(world.database)


async def _answers(database: str) -> None:
    while True:
        with suppress(psycopg.Error):
            await asyncio.to_thread(_query, database, "SELECT 1")
            return
        await asyncio.sleep(0.1)


async def fill_disk(world: World, chance: random.Random) -> bool:
    async with _recovering(world):
        _, before = world.read_disk()
        world.set_disk(full=True)
        await asyncio.sleep(chance.uniform(1.0, 2.0))
    return world.read_disk()[1] > before


async def fail_sync(world: World, _: random.Random) -> bool:
    async with _recovering(world):
        world.set_disk(failing_syncs=1)
        for _attempt in range(40):
            await asyncio.sleep(0.05)
            if not world.read_disk()[0]:
                return True
    return False


async def lock_file(world: World, chance: random.Random) -> bool:
    """Hold the write lock of the SQLite file, mostly for longer than a claim may take."""

    def hold() -> None:
        with closing(sqlite3.connect(world.database.removeprefix("sqlite:///"), timeout=30)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            waiting.wait(chance.choice((0.5, CLAIM_SECONDS * 1.5)))
            connection.execute("ROLLBACK")

    waiting = threading.Event()
    await asyncio.to_thread(hold)
    return True


DATABASES = (
    Fault("F7", partial(restart_postgres, False), sqlite=False),
    Fault("F8", partial(restart_postgres, True), sqlite=False),
    Fault("F9", terminate_sessions, sqlite=False),
    Fault("F10", lose_reply, sqlite=False),
    Fault("F11", partition, sqlite=False),
    Fault("F12", slow_database, sqlite=False),
    Fault("F13", fill_disk, needs="disk"),
    Fault("F14", fail_sync, needs="disk"),
    Fault("F18", lock_file, postgres=False),
    Fault("F19", exhaust_connections, sqlite=False),
    Fault("F23", pin_xmin, sqlite=False),
    Fault("F25", restart_pooler, sqlite=False, needs="bouncer"),
)
