"""Processes of a service are replaced one by one under load: no connection is refused and no delivery is lost."""

import asyncio
import os
import random
import signal
import socket
from pathlib import Path

import pytest

from tests.support.recording_senders import Ledger, assert_every_ack_is_recorded, send
from tests.support.serve import Process, write_config
from tests.support.servers import Postgres, children_of
from tests.support.waiting import eventually, let_time_pass

pytestmark = pytest.mark.anyio


async def keep_sending(ledger: Ledger, port: int, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await send(ledger, port)  # until its connection is closed


async def until_replaced(parent: int, gone: int) -> None:
    def is_replaced() -> bool:
        children = children_of(parent)
        return gone not in children and len(children) == 2

    await eventually(is_replaced, "the supervisor starts another child")


@pytest.mark.rest
async def test_children_are_replaced_under_load_without_a_lost_delivery(postgres: Postgres, tmp_path: Path) -> None:
    database = postgres.database(migrated=True)
    config = write_config(tmp_path, database, 'log_level = "error"')
    ledger, stop = Ledger(random.randrange(2**32)), asyncio.Event()
    service = Process(config, "--processes", "2")
    try:
        senders = [asyncio.create_task(keep_sending(ledger, service.port, stop)) for _ in range(8)]
        await ledger.until_more(100)
        for _ in range(6):
            victim = random.choice(children_of(service.process.pid))
            os.kill(victim, signal.SIGTERM)
            await until_replaced(service.process.pid, victim)
            await ledger.until_more(100)
        stop.set()
        assert service.end() == 0
        await asyncio.wait_for(asyncio.gather(*senders), 30)
    finally:
        service.process.kill()
    assert_every_ack_is_recorded(database, ledger)


async def count_refused(port: int, stop: asyncio.Event) -> int:
    """Connect repeatedly, and count how often the connection was refused."""
    refused = 0
    while not stop.is_set():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()
        except ConnectionRefusedError:
            refused += 1
        except OSError:
            pass  # it was accepted, and cut
        await let_time_pass(0.005)
    return refused


@pytest.mark.rest
@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="a port cannot be shared here")
async def test_service_is_replaced_on_its_port_without_a_refused_connection(postgres: Postgres, tmp_path: Path) -> None:
    database = postgres.database(migrated=True)
    config = write_config(tmp_path, database, 'log_level = "error"')
    ledger, stop = Ledger(random.randrange(2**32)), asyncio.Event()
    old = Process(config, "--reuse-port")
    tasks = [asyncio.create_task(keep_sending(ledger, old.port, stop)) for _ in range(4)]
    counting = asyncio.create_task(count_refused(old.port, stop))
    try:
        await ledger.until_more(30)
        new = await asyncio.to_thread(Process, config, "--reuse-port", "--port", str(old.port))
        try:
            assert await asyncio.to_thread(old.end) == 0
            await ledger.until_more(100)
            stop.set()
            assert await counting == 0
            assert await asyncio.to_thread(new.end) == 0
        finally:
            new.process.kill()
    finally:
        stop.set()
        old.process.kill()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert_every_ack_is_recorded(database, ledger)
