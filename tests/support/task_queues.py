"""The task queues of every library, on a private server, with a real worker process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import task_programs
from tests.support.redis_server import RedisServer
from tests.support.temporal_server import TemporalServer

LIBRARIES = ("celery", "dramatiq", "rq", "arq", "taskiq", "temporal")
DEDUPLICATING = ("rq", "arq", "temporal")


def client_of(library: str, address: str) -> tuple[Any, Any]:
    """The task queue and the task of a library, for `inbox.tasks` and `event.enqueue`."""
    if library == "temporal":
        from tests.support.temporal_program import make_temporal

        return make_temporal(address)
    make: Callable[[str], tuple[Any, Any]] = getattr(task_programs, f"make_{library}")
    return make(address)


def options_of(library: str) -> dict[str, Any]:
    """What `inbox.tasks` needs besides the task queue."""
    return {"task_queue": "shop"} if library == "temporal" else {}


@dataclass
class Library:
    """One library with its server. `queue` and `task` are what a user's program has."""

    name: str
    server: RedisServer | TemporalServer
    folder: Path

    def __post_init__(self) -> None:
        self.queue, self.task = client_of(self.name, self.address)

    @property
    def address(self) -> str:
        return self.server.url if isinstance(self.server, RedisServer) else self.server.address

    @property
    def options(self) -> dict[str, Any]:
        return options_of(self.name)

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run a worker of this library until the block ends."""
        command = [sys.executable, "-m", "tests.support.task_worker", self.name, self.address]
        environment = os.environ | {task_programs.RECORD: str(self.folder / "record")}
        with (self.folder / "worker.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def done(self) -> list[tuple[str, str, int]]:
        """The id and the arguments of every task that ran, in this order."""
        path = self.folder / "record"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(task_id, invoice, amount) for task_id, invoice, amount in map(json.loads, lines)]


@contextmanager
def running_library(name: str) -> Iterator[Library]:
    with tempfile.TemporaryDirectory(prefix="oncehook-tasks-") as folder:
        path = Path(folder)
        server = TemporalServer(path) if name == "temporal" else RedisServer(path)
        try:
            yield Library(name, server.start(), path)
        finally:
            server.kill()
