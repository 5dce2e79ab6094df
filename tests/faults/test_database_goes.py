"""The database loses its connections, restarts or dies under load: no acked event is lost or accepted twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.counts import DATABASE_KILLS, Repetitions, count
from tests.support.load import assert_every_ack_is_recorded, under_load
from tests.support.servers import Postgres, private_postgres, run_sql

pytestmark = pytest.mark.anyio


async def run(
    address: str, rounds: int, fault: Callable[[], Awaitable[object]], *, most_unavailable: float | None = None
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with under_load(address, seed) as load:
        for _ in range(rounds):
            await load.until_more(chance.randrange(20, 150))
            await fault()
        await load.until_more(100)
    assert_every_ack_is_recorded(address, load)
    assert load.acked
    if most_unavailable is not None:
        assert load.unavailable <= most_unavailable, f"{load.unavailable} deliveries got 503: seed {seed}"


async def test_terminated_connections_under_load_lose_no_event_and_cause_no_503(postgres: Postgres) -> None:
    address = postgres.database(migrated=True)
    terminate = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'oncehook'"
    )
    await run(address, 25, lambda: asyncio.to_thread(run_sql, address, terminate), most_unavailable=0)


async def restart(server: Postgres, *, kill: bool) -> None:
    await asyncio.to_thread(server.stop, kill=kill)
    await asyncio.to_thread(server.start)
    count(DATABASE_KILLS, int(kill))


@pytest.mark.rest
async def test_database_that_restarts_and_dies_under_load_loses_no_acked_event() -> None:
    with private_postgres() as server:
        address = server.database()
        kills = iter([False, True, True])
        await run(address, 3, lambda: restart(server, kill=next(kills)))


@pytest.mark.torture
async def test_database_that_dies_many_times_under_load_loses_no_acked_event(repetitions: Repetitions) -> None:
    with private_postgres() as server:
        address = server.database()
        await run(address, repetitions(5, 50), lambda: restart(server, kill=True))
