"""Hosts behind a load balancer are restarted and upgraded one by one under load: no delivery fails."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import oncehook
from tests.support.counts import Repetitions
from tests.support.load_balancer import PacedLoad, load_balancer
from tests.support.serve import Process, worker_process, write_config
from tests.support.servers import Postgres, free_port, run_sql
from tests.support.waiting import eventually
from tests.support.worker_process import UNFINISHED, until_count

pytestmark = pytest.mark.anyio

RATE = 500.0
HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()


@inbox.on("stripe", "*")
async def apply(event: Event, tx) -> None:
    await tx.execute("INSERT INTO applied (event_id) VALUES ($1)", event.id)
"""
ADDITIVE = """
ALTER TABLE webhook_receipts ADD COLUMN note text;
CREATE TABLE webhook_notes (id bigint PRIMARY KEY);
CREATE INDEX webhook_receipts_note ON webhook_receipts (note) WHERE note IS NOT NULL;
"""
"""What the migration of a later release may do: it only adds."""


@pytest.fixture
def folder(postgres: Postgres, tmp_path: Path) -> Path:
    """A folder with a configuration and handlers, as each host has it."""
    (tmp_path / "hooks.py").write_text(HOOKS)
    database = postgres.database(migrated=True)
    run_sql(database, "CREATE TABLE applied (event_id text)")
    write_config(tmp_path, database, 'log_level = "error"', 'drain_delay = "500ms"', 'stop_grace = "10s"')
    return tmp_path


@pytest.fixture
def later_release(tmp_path: Path) -> str:
    """A folder with the code of a later release, which has another migration. Processes import it by PYTHONPATH."""
    code = tmp_path / "later"
    shutil.copytree(Path(oncehook.__file__).parent, code / "oncehook", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "oncehook/store/sql/postgres/migrations/002_notes.sql").write_text(ADDITIVE)
    return str(code)


class Hosts:
    """`oncehook serve` processes on fixed ports and `oncehook worker` processes, which are replaced one by one."""

    def __init__(self, folder: Path, receivers: int, workers: int) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(receivers)]
        self.receivers: list[Process] = []
        self.workers = [ExitStack() for _ in range(workers)]
        self.processes: list[subprocess.Popen[str]] = []

    @contextmanager
    def running(self) -> Iterator["Hosts"]:
        with ExitStack() as stack:
            stack.callback(self._kill_receivers)
            for port in self.ports:
                self.receivers.append(self._receiver(port))
            for number in range(len(self.workers)):
                self.processes.append(self._worker(number))
                stack.callback(self.workers[number].close)
            yield self

    def _kill_receivers(self) -> None:
        for receiver in self.receivers:
            receiver.kill()

    def _receiver(self, port: int, code: str = "") -> Process:
        options = ["--no-worker", "--no-dashboard", "--port", str(port)]
        return Process(self.folder / "oncehook.toml", *options, PYTHONPATH=code)

    def _worker(self, number: int, code: str = "") -> "subprocess.Popen[str]":
        return self.workers[number].enter_context(worker_process(self.folder, PYTHONPATH=code))

    def replace_receiver(self, number: int, code: str = "") -> None:
        """Stop a receiver by SIGTERM, and start another one on its port."""
        assert self.receivers[number].end() == 0
        self.receivers[number] = self._receiver(self.ports[number], code)

    def replace_worker(self, number: int, code: str = "") -> None:
        self.processes[number].terminate()
        assert self.processes[number].wait(30) == 0
        self.workers[number].close()
        self.processes[number] = self._worker(number, code=code)


async def replace_all(hosts: Hosts, load: PacedLoad, rounds: int, code: str = "") -> None:
    """Replace every process in turn, and wait until each has worked."""
    for _ in range(rounds):
        for number in range(len(hosts.receivers)):
            await asyncio.to_thread(hosts.replace_receiver, number, code=code)
            await until_more(load)
        for number in range(len(hosts.workers)):
            await asyncio.to_thread(hosts.replace_worker, number, code=code)
            await until_more(load)


async def until_more(load: PacedLoad) -> None:
    goal = len(load.acked) + 200
    await eventually(lambda: len(load.acked) >= goal or load.failures, "deliveries are acked")
    assert not load.failures


async def roll(folder: Path, receivers: int, workers: int, rounds: int, code: str = "") -> None:
    """Replace the processes of a service under load, and check every event."""
    database = database_of(folder)
    with Hosts(folder, receivers, workers).running() as hosts, load_balancer(folder, hosts.ports) as port:
        load = PacedLoad(port, RATE)
        sending = asyncio.create_task(load.run())
        try:
            await until_more(load)
            await replace_all(hosts, load, rounds, code=code)
        finally:
            load.is_over = True
            await sending
        assert load.failures == []
        await until_count(database, UNFINISHED, lambda count: count == 0)
    stored = run_sql(database, "SELECT event_id FROM webhook_receipts WHERE status = 'processed'")
    applied = run_sql(database, "SELECT event_id FROM applied")
    assert sorted(stored) == sorted(applied) == sorted((event_id,) for event_id in load.acked)


def database_of(folder: Path) -> str:
    return (folder / "oncehook.toml").read_text().split('"')[1]


@pytest.mark.torture
async def test_hosts_are_upgraded_one_by_one_without_a_failed_delivery(folder: Path, later_release: str) -> None:
    """The first new process migrates the schema. Old and new processes then share it."""
    await roll(folder, 2, 1, 1, code=later_release)
    applied = run_sql(database_of(folder), "SELECT number, name FROM webhook_migrations ORDER BY number")
    assert applied == [(1, "initial"), (2, "notes")], "the later release must have run"


@pytest.mark.torture
async def test_hosts_are_restarted_many_times_without_a_failed_delivery(folder: Path, repetitions: Repetitions) -> None:
    await roll(folder, 3, 2, repetitions(2, 6))
