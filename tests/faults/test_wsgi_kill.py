"""Prefork servers whose workers are killed at random under load: no acked event is lost, and each is handled once."""

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integrations.frameworks.server import Server
from tests.integrations.frameworks.table import UWSGI, Framework
from tests.support.counts import KILLS, Repetitions, count
from tests.support.recording_senders import Ledger, assert_every_ack_is_recorded, send
from tests.support.servers import Postgres, children_of, run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

WORKERS = 4
CONNECTIONS = 8
GUNICORN = ("gunicorn", "--workers", str(WORKERS), "--threads", "4", "--bind", "127.0.0.1:{port}")
SERVERS = {
    "prefork": Framework("flask_app", (*GUNICORN, "{app}")),
    "preload": Framework("flask_app", (*GUNICORN, "--preload", "{app}")),
    "uwsgi": Framework("flask_app", (*UWSGI, "--processes", str(WORKERS))),
}
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'"


async def keep_sending(ledger: Ledger, port: int) -> None:
    """Deliver over one connection after the other. The master process keeps the port open."""
    while True:
        await send(ledger, port)


async def kill_workers(server: Server, ledger: Ledger, kills: int) -> None:
    """Kill a random worker process `kills` times, while senders deliver."""
    senders = [asyncio.create_task(keep_sending(ledger, server.port)) for _ in range(CONNECTIONS)]
    for _ in range(kills):
        await ledger.until_more(ledger.chance.randrange(5, 80))
        worker = ledger.chance.choice(children_of(server.process.pid))
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
            count(KILLS)
    await ledger.until_more(50)
    for sender in senders:
        sender.cancel()
    await asyncio.gather(*senders, return_exceptions=True)


async def assert_kills_lose_and_double_nothing(database: str, folder: Path, server: Framework, kills: int) -> Ledger:
    run_sql(database, "CREATE TABLE ledger (note text)")
    ledger = Ledger(random.randrange(2**32))
    with await asyncio.to_thread(Server(server, database, folder, SHOP_CLAIM_TIMEOUT="20s").__enter__) as running:
        await kill_workers(running, ledger, kills)
        await eventually(lambda: run_sql(database, UNFINISHED) == [(0,)], "every event is processed", within=90)
        await eventually(lambda: len(children_of(running.process.pid)) == WORKERS, "all workers run again")
        await asyncio.to_thread(running.end)
        stopped = running.logged().splitlines().count("stopped")
    assert_every_ack_is_recorded(database, ledger)
    handled = sorted(note for (note,) in run_sql(database, "SELECT note FROM ledger"))
    recorded = dict(run_sql(database, "SELECT event_id, status FROM webhook_receipts"))
    late = {event_id for event_id, status in recorded.items() if status != "processed"}  # claimed as the server ended
    assert not late & ledger.acked, f"an acked event was not handled: repeat with {ledger.seed}"
    assert handled == sorted(recorded.keys() - late), f"an event was handled twice: repeat with {ledger.seed}"
    assert 1 <= stopped <= WORKERS, "each worker process that has started its inbox stops it"
    return ledger


@pytest.mark.rest
@pytest.mark.parametrize("server", ["prefork", "preload"])
async def test_killed_workers_of_a_prefork_server_lose_and_double_nothing(
    postgres: Postgres, tmp_path: Path, server: str
) -> None:
    database = postgres.database(migrated=True)
    ledger = await assert_kills_lose_and_double_nothing(database, tmp_path, SERVERS[server], 3)
    assert len(ledger.acked) > 50
    postgres.drop_later(database)


@pytest.mark.torture
@pytest.mark.parametrize("server", SERVERS)
async def test_workers_of_a_prefork_server_are_killed_many_times(
    postgres: Postgres, tmp_path: Path, server: str, repetitions: Repetitions
) -> None:
    database, kills = postgres.database(migrated=True), repetitions(60, 200)
    ledger = await assert_kills_lose_and_double_nothing(database, tmp_path, SERVERS[server], kills)
    assert len(ledger.acked) > 15 * kills
    postgres.drop_later(database)
