"""The primary of a Patroni cluster dies under load: with a synchronous standby no acked event is lost or applied twice.

`oncehook serve` and worker processes run through all failovers and are never restarted.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from oncehook.store.identity import Identity
from tests.faults.test_standby import doctor
from tests.faults.test_worker_kill import assert_each_event_was_applied_once
from tests.support.counts import FAILOVERS, Repetitions, count
from tests.support.patroni import Cluster, Node, patroni_cluster
from tests.support.recording_senders import Ledger, assert_every_ack_is_recorded, send
from tests.support.serve import Process, write_config
from tests.support.servers import run_sql
from tests.support.stores import open_store
from tests.support.worker_process import UNFINISHED, WorkerProcess, until_count

pytestmark = pytest.mark.anyio

DATABASE = "inbox"
CONNECTIONS = 3
"""Connections of senders to each service."""


class PatientLedger(Ledger):
    """Delivers an event again if the service was unavailable, as a provider does."""

    unavailable = 0

    async def record(self, event_id: str, status: int, body: bytes) -> None:
        if status == 503:
            self.unavailable += 1
            self.unknown.append(event_id)
        else:
            await super().record(event_id, status, body)


class Service:
    """Two services and two workers on a cluster, under load."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.address = cluster.url(DATABASE)
        self.config = write_config(folder, self.address, 'log_level = "error"', 'claim_timeout = "5s"')
        self.ledger = PatientLedger(random.randrange(2**32))
        self.stopping = False
        self.services = [Process(self.config, "--no-worker") for _ in range(2)]
        self.workers = [WorkerProcess(self.address) for _ in range(2)]
        self.senders = [
            asyncio.create_task(self.keep_sending(service.port))
            for service in self.services
            for _ in range(CONNECTIONS)
        ]

    async def keep_sending(self, port: int) -> None:
        while not self.stopping:
            await send(self.ledger, port)

    async def fail_over(self, *, host: bool = False) -> None:
        """Kill the primary at a random moment, and wait for the other one. Its standby must follow before the next."""
        await asyncio.to_thread(self.cluster.until_replicating)
        await self.ledger.until_more(self.ledger.chance.randrange(20, 120))
        old = await asyncio.to_thread(self.cluster.leader)
        (old.kill if host else old.kill_postgres)()
        await asyncio.to_thread(self.cluster.until_other_leader, old)
        await self.ledger.until_more(20)
        if host:
            old.start()

    async def stop(self) -> None:
        """Stop the senders and the services, and wait until every event is processed."""
        self.stopping = True
        codes = [await asyncio.to_thread(service.end) for service in self.services]
        await asyncio.wait_for(asyncio.gather(*self.senders), 30)
        await until_count(self.address, UNFINISHED, lambda left: left == 0)
        codes += [await asyncio.to_thread(worker.end, signal.SIGTERM) for worker in self.workers]
        assert codes == [0, 0, 0, 0], "a process did not survive the failovers"

    def kill(self) -> None:
        self.stopping = True
        for service in self.services:
            service.kill()
        for worker in self.workers:
            worker.end()


@contextlib.asynccontextmanager
async def running(cluster: Cluster, folder: Path) -> AsyncIterator[Service]:
    await asyncio.to_thread(cluster.create_database, DATABASE)
    run_sql(cluster.url(DATABASE), "CREATE TABLE ledger (event_id TEXT NOT NULL, twice TEXT)")
    service = Service(cluster, folder)
    try:
        yield service
    finally:
        service.kill()


async def assert_failovers_lose_nothing(folder: Path, hosts: list[bool]) -> None:
    with patroni_cluster() as cluster:
        async with running(cluster, folder) as service:
            changes: list[Identity] = []
            async with open_store(service.address) as store:
                store.identities.on_identity_change(changes.append)
                await store.identities.check()
                for host in hosts:
                    await service.fail_over(host=host)
                    count(FAILOVERS)
                    await store.identities.check()
                await service.stop()
            assert_every_ack_is_recorded(service.address, service.ledger)
            assert_each_event_was_applied_once(service.address, service.ledger.seed)
    timelines = [identity.name.split("/")[1] for identity in changes]
    assert timelines == [f"{number:08X}" for number in range(2, len(hosts) + 2)]


@pytest.mark.rest
async def test_failover_to_the_synchronous_standby_loses_no_acked_event(tmp_path: Path) -> None:
    await assert_failovers_lose_nothing(tmp_path, [False])


@pytest.mark.torture
async def test_many_failovers_lose_no_acked_event(tmp_path: Path, repetitions: Repetitions) -> None:
    """In every fourth, the whole host dies, so that the leader lock must expire first."""
    await assert_failovers_lose_nothing(tmp_path, [n % 4 == 3 for n in range(repetitions(4, 20))])


def stall_replication(primary: Node) -> None:
    """Stop the process that sends the log to the standby."""
    with psycopg.connect(primary.url("postgres"), autocommit=True) as connection:
        for (pid,) in connection.execute("SELECT pid FROM pg_stat_replication"):
            os.kill(pid, signal.SIGSTOP)


@pytest.mark.torture
async def test_failover_to_an_asynchronous_standby_loses_acked_events_and_doctor_says_so(tmp_path: Path) -> None:
    """Shows that the test above can fail: the same failover, with events that the standby has not received."""
    with patroni_cluster(synchronous=False) as cluster:
        async with running(cluster, tmp_path) as service:
            findings = await asyncio.to_thread(doctor, service.config)
            assert any("asynchronous standby" in finding["message"] for finding in findings)
            await service.ledger.until_more(50)
            await asyncio.to_thread(stall_replication, await asyncio.to_thread(cluster.leader))
            await service.fail_over()
            service.stopping = True
            for process in service.services:
                await asyncio.to_thread(process.end)
            await asyncio.wait_for(asyncio.gather(*service.senders), 30)
            with pytest.raises(AssertionError, match="acked and lost"):
                assert_every_ack_is_recorded(service.address, service.ledger)
            rows = run_sql(service.address, "SELECT event_id FROM ledger")
            assert len(rows) == len(set(rows)), "an event was applied twice"
