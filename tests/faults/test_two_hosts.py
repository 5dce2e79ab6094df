"""Two hosts, each in its own network namespace: their links to the database are cut and healed under load."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.counts import Repetitions
from tests.support.events import stripe_body, stripe_headers
from tests.support.namespaces import PORT, Host, admit, two_hosts, why_impossible
from tests.support.serve import parse_head, request, write_config
from tests.support.servers import Postgres, private_postgres, run_sql
from tests.support.waiting import eventually, let_time_pass
from tests.support.worker_process import UNFINISHED, until_count

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("namespaces")]

SENDERS = 8
RESPONSE_SECONDS = 6.0
"""Seconds after which a sender gives up and delivers the event again, to either host."""

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()


@inbox.on("stripe", "*")
async def apply(event: Event, tx) -> None:
    await tx.execute("INSERT INTO applied (event_id) VALUES ($1)", event.id)
"""


class Senders:
    """Deliver new events to two hosts in turn. An event is delivered again until it is acked, as a provider does."""

    def __init__(self, hosts: list[Host], seed: int) -> None:
        self.hosts = hosts
        self.chance = random.Random(seed)
        self.acked: dict[str, list[str]] = {host.name: [] for host in hosts}
        self.failed: dict[str, int] = dict.fromkeys(self.acked, 0)
        self.is_over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._send(number) for number in range(SENDERS)))

    async def _send(self, sender: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            await self._deliver_until_acked(f"evt_{sender}_{number}")
            await let_time_pass(0.01)

    async def _deliver_until_acked(self, event_id: str) -> None:
        while True:
            host = self.chance.choice(self.hosts)
            try:
                async with asyncio.timeout(RESPONSE_SECONDS):
                    status = await self._deliver(host, event_id)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                status = 0
            if status in (200, 202):
                self.acked[host.name].append(event_id)
                return
            assert status in (0, 503), status
            self.failed[host.name] += 1
            await let_time_pass(0.1)

    async def _deliver(self, host: Host, event_id: str) -> int:
        body = stripe_body(event_id)
        reader, writer = await asyncio.open_connection(host.address, PORT)
        try:
            writer.write(request("/webhooks/stripe", stripe_headers(body), body))
            status, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
            await reader.readexactly(int(headers["content-length"]))
            return status
        finally:
            writer.transport.abort()

    async def until_more(self, host: Host, count: int) -> None:
        goal = len(self.acked[host.name]) + count
        await eventually(lambda: len(self.acked[host.name]) >= goal, f"{host.name} acks deliveries", within=60)

    async def until_failing(self, host: Host) -> None:
        goal = self.failed[host.name] + 1
        await eventually(lambda: self.failed[host.name] >= goal, f"{host.name} fails without its database", within=60)


@pytest.fixture
def server() -> Iterator[Postgres]:
    if reason := why_impossible():
        pytest.skip(f"two hosts with a link that is cut: {reason}")
    with private_postgres(listen_addresses="*") as server:
        admit(server)
        yield server


def start_hosts(server: Postgres, hosts: list[Host], folder: Path) -> str:
    """Start a service on each host, and return the address of their database."""
    database = server.database(migrated=True)
    run_sql(database, "CREATE TABLE applied (event_id text)")
    for host in hosts:
        own = folder / host.name
        own.mkdir()
        (own / "hooks.py").write_text(HOOKS)
        settings = ['claim_timeout = "2s"', 'lease = "2s"', 'stop_grace = "5s"', 'log_level = "error"']
        write_config(own, database.replace("127.0.0.1", host.gateway), *settings)
        host.start(own, "--no-dashboard")
    return database


async def cut_and_heal(hosts: list[Host], senders: Senders, seconds: float) -> None:
    """Cut the links of these hosts, and let them fail for a while. Heal the links, and wait until all hosts work."""
    for host in hosts:
        host.cut()
    for host in hosts:
        await senders.until_failing(host)
    await let_time_pass(seconds)
    for host in hosts:
        host.heal()
    for host in senders.hosts:
        await senders.until_more(host, 50)
        assert await asyncio.to_thread(host.is_ready)


async def run_under_cuts(server: Postgres, folder: Path, cuts: list[tuple[list[int], float]]) -> None:
    with ExitStack() as stack:
        hosts = stack.enter_context(two_hosts())
        database = await asyncio.to_thread(start_hosts, server, hosts, folder)
        senders = Senders(hosts, random.randrange(2**32))
        sending = asyncio.create_task(senders.run())
        try:
            await senders.until_more(hosts[0], 50)
            for numbers, seconds in cuts:
                await cut_and_heal([hosts[number] for number in numbers], senders, seconds)
        finally:
            senders.is_over = True
            await asyncio.wait_for(sending, 60)
        await until_count(database, UNFINISHED, lambda count: count == 0)
        assert [await asyncio.to_thread(host.end) for host in hosts] == [0, 0]
    acked = {event_id for events in senders.acked.values() for event_id in events}
    stored = [row[0] for row in run_sql(database, "SELECT event_id FROM webhook_receipts WHERE status = 'processed'")]
    applied = [row[0] for row in run_sql(database, "SELECT event_id FROM applied")]
    assert acked - set(stored) == set(), "an acked event was lost"
    assert sorted(stored) == sorted(set(applied)) == sorted(applied), "an event was not applied exactly once"


@pytest.mark.rest
async def test_hosts_recover_when_their_links_to_the_database_heal(server: Postgres, tmp_path: Path) -> None:
    await run_under_cuts(server, tmp_path, [([0], 0.5)])


@pytest.mark.torture
async def test_hosts_recover_from_many_cuts_of_one_or_both_links(
    server: Postgres, tmp_path: Path, repetitions: Repetitions
) -> None:
    chance = random.Random(17)
    cuts = [(chance.choice([[0], [1], [0, 1]]), chance.uniform(0, 8)) for _ in range(repetitions(3, 12))]
    await run_under_cuts(server, tmp_path, cuts)
