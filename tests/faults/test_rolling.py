"""Processes of a service are replaced one after the other under load: no delivery is refused, and none is lost."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.faults.senders import Ledger, send
from tests.faults.test_kill import check
from tests.servers import Postgres, children_of
from tests.serving import Process, write_config

pytestmark = [pytest.mark.anyio, pytest.mark.torture]


async def keep_sending(ledger: Ledger, port: int, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await send(ledger, port)  # until its connection is closed


async def until_other(parent: int, gone: int) -> None:
    async with asyncio.timeout(30):
        while gone in (children := children_of(parent)) or len(children) < 2:
            await asyncio.sleep(0.1)


async def test_every_child_is_replaced_under_load_and_no_delivery_is_refused(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.database()
    config = write_config(tmp_path, database, 'log_level = "error"')
    ledger, stop = Ledger(random.randrange(2**32)), asyncio.Event()
    service = Process(config, "--processes", "2")
    try:
        senders = [asyncio.create_task(keep_sending(ledger, service.port, stop)) for _ in range(8)]
        await ledger.until_more(100)
        for _ in range(6):
            victim = random.choice(children_of(service.process.pid))
            os.kill(victim, signal.SIGTERM)
            await until_other(service.process.pid, victim)
            await ledger.until_more(100)
        stop.set()
        assert service.end() == 0
        await asyncio.wait_for(asyncio.gather(*senders), 30)
    finally:
        service.process.kill()
    check(database, ledger)
