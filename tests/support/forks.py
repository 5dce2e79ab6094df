"""Processes that are forks of one that has imported everything, for tests that start many.

A fork takes a tenth of the time of a new interpreter. It runs a module as `python -m` does.
"""

import multiprocessing
import os
import re
import runpy
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["tests.faults.crash_process"]
"""Modules that the first process imports: with them, the inbox, its drivers and the HTTP server."""


def forks() -> multiprocessing.context.ForkServerContext:
    """The context in which such processes start."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    return CONTEXT


class Fork:
    """A process that runs `module`, and has printed its first line."""

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        self._output, writer = forks().Pipe(duplex=False)
        self.process = forks().Process(target=_run, args=(module, arguments, {**os.environ, **environment}, writer))
        self.process.start()
        writer.close()
        self.first_line = _read_line(self._output)

    @property
    def has_ended(self) -> bool:
        return not self.process.is_alive()

    def send(self, number: int) -> None:
        if not self.has_ended:
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, and return its exit code."""
        self.send(number)
        self.process.join(40)
        assert self.process.exitcode is not None, "the process did not end within 40 s"
        return self.process.exitcode

    def kill(self) -> None:
        self.end(signal.SIGKILL)


class ForkedService(Fork):
    """A running `oncehook serve`, with its port."""

    def __init__(self, config: Path, **environment: str) -> None:
        super().__init__("oncehook", "serve", "--config", str(config), "--port", "0", **environment)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.first_line)
        if found is None:
            raise AssertionError(f"oncehook serve did not start: {self.first_line!r}, exit code {self.end()}")
        self.port = int(found[1])


def _read_line(output: Connection) -> str:
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(output.fileno(), 1)):
        line += letter
    return line.decode()


def _run(module: str, arguments: tuple[str, ...], environment: dict[str, str], output: Connection) -> None:
    """Run the module with the environment of the test, which the forked process does not know."""
    os.environ.clear()
    os.environ.update(environment)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
