"""A backup is restored under a running service: events that providers send again are accepted once."""

import asyncio
import random
import subprocess
from pathlib import Path

import pytest

from oncehook.testing import deliver
from tests.support.load import assert_every_ack_is_recorded, under_load
from tests.support.proxy import proxied
from tests.support.servers import Postgres, private_postgres, run_sql

pytestmark = [pytest.mark.anyio, pytest.mark.torture]


def run(server: Postgres, program: str, *options: str) -> None:
    subprocess.run([server.binaries / program, *options], check=True, cwd="/")


def swap(server: Postgres, address: str, dump: Path) -> None:
    """Replace the database by the backup, under the same address."""
    name = address.rpartition("/")[2]
    server.sql("CREATE DATABASE restored")
    run(server, "pg_restore", "--no-owner", f"--dbname={server.url('restored')}", str(dump))
    server.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    server.sql(f"ALTER DATABASE {name} RENAME TO gone")
    server.sql(f"ALTER DATABASE restored RENAME TO {name}")


async def test_event_that_a_restore_lost_is_accepted_when_it_is_delivered_again(tmp_path: Path) -> None:
    with private_postgres() as server:
        address = server.database()
        dump = tmp_path / "dump"
        async with proxied(address) as (proxy, through), under_load(through, random.randrange(2**32)) as load:
            await load.until_more(300)
            await asyncio.to_thread(run, server, "pg_dump", "--format=custom", f"--file={dump}", address)
            await load.until_more(300)
            load.may_vanish = True
            proxy.refuse()
            await asyncio.to_thread(swap, server, address, dump)
            kept = {
                row[0] for row in await asyncio.to_thread(run_sql, address, "SELECT event_id FROM webhook_receipts")
            }
            gone = [event_id for event_id in load.acked if event_id not in kept]
            proxy.accept()
            load.fresh = [event_id for event_id in load.fresh if event_id in kept]
            assert len(gone) > 100
            for event_id in gone:
                status = (await deliver(load.inbox, "stripe", load.acked[event_id])).status
                assert status in (200, 202), f"{event_id} was sent again and got {status}"
            for _ in range(6):  # more than a block of ids
                await load.until_more(100)
        assert_every_ack_is_recorded(address, load)
