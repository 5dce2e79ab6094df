"""SIGKILL between the hand-over of a task and the settle: the task is handed over again, under the same id."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oncehook import Inbox
from tests.faults.relay_worker import HEIR
from tests.support.servers import run_sql
from tests.support.task_queues import DEDUPLICATING, LIBRARIES, Library, running_library
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

STATES = "SELECT status FROM webhook_effects"
SAMPLE = ("dramatiq", "rq")


@contextmanager
def relay_process(database: str, library: Library, point: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.faults.task_relay", database, library.name, library.address, point]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.mark.rest
@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.torture) for name in LIBRARIES],
)
async def test_task_of_a_killed_relay_is_handed_over_again_under_the_same_id(sqlite: str, name: str) -> None:
    inbox = Inbox(sqlite, worker=False)
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
    with running_library(name) as library:
        with relay_process(sqlite, library, "after the hand-over") as killed:
            await eventually(lambda: killed.poll() == -signal.SIGKILL, "the relay is killed", within=60)
        assert run_sql(sqlite, STATES) == [("performing",)]
        with relay_process(sqlite, library, HEIR):
            await eventually(lambda: run_sql(sqlite, STATES) == [("done",)], "the heir settles it", within=60)
        expected = 1 if name in DEDUPLICATING else 2
        with library.worker():
            await eventually(lambda: len(library.done()) == expected, f"{expected} runs", within=60)
        assert len({task_id for task_id, _, _ in library.done()}) == 1
