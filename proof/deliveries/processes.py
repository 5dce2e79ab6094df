"""The processes of a run: `oncehook serve` and `oncehook worker`, which are started again when they end."""

import asyncio
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support import ROOT
from tests.support.serve import ONCEHOOK

APP = "proof.deliveries.hooks:inbox"
UNEXPECTED = "ended by itself"
START_SECONDS, STOP_SECONDS = 60.0, 40.0


class Slot:
    """Runs one process, and replaces it when it ends, as a service manager does."""

    def __init__(self, name: str, folder: Path, command: Iterable[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.port: int | None = None
        """The port of an `oncehook serve` that listens."""
        self.exits: Counter[str] = Counter()
        """How often its processes ended, with their exit codes."""
        self.is_signalled = False
        """Whether a signal of the run ends the process."""
        self.log = folder / f"{name}.log"
        self.clock = folder / f"{name}.clock"
        self.clock_offset = 0
        self.command = [str(ONCEHOOK), *command]
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self.process: subprocess.Popen[bytes] | None = None
        self.is_free = asyncio.Lock()
        """Held while a fault acts on this process."""
        self.is_over = False

    @property
    def is_server(self) -> bool:
        return "serve" in self.command

    def set_clock(self, offset: int) -> None:
        """Set how far the clock of the process is off. Its file is mapped by the process, so it never gets shorter."""
        self.clock_offset = offset
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("<q", offset))

    def set_descriptors(self, number: int | None) -> None:
        """Limit the file descriptors of the process, or restore its limit."""
        if self.process is not None and self.process.poll() is None:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (most[0] if number is None else number, most[1]))

    @property
    def descriptors(self) -> int:
        assert self.process is not None
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def run(self) -> None:
        """Restart the process whenever it ends, until `is_over`."""
        while not self.is_over:
            self.is_signalled = False
            is_ready = await self._start()
            assert self.process is not None
            while (code := self.process.poll()) is None:
                await asyncio.sleep(0.05)
            self.port = None
            self.exits[self._reason(code) if is_ready else "did not start"] += 1
            await asyncio.sleep(0.0 if is_ready else 1.0)  # it did not start: its database is down

    def _reason(self, code: int) -> str:
        if self.is_signalled:
            return f"ended by a signal, {code}"
        return "aborted by its handler" if code == -signal.SIGABRT else f"{UNEXPECTED}, {code}"

    async def _start(self) -> bool:
        """Start the process. Returns whether it became ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, cwd=ROOT, env=self.environment, start_new_session=True
            )
        begin, deadline = self.log.stat().st_size, time.monotonic() + START_SECONDS
        while self.process.poll() is None:
            with self.log.open("rb") as log:
                log.seek(begin)
                text = log.read().decode(errors="replace")
            if "Oncehook worker" in text:
                return True
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", text):
                self.port = int(found[1])
                return True
            if time.monotonic() > deadline:
                sys.exit(f"{self.name} did not start: {text[-2000:]}")
            await asyncio.sleep(0.05)
        return False

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.is_signalled = self.is_signalled or number in (signal.SIGKILL, signal.SIGTERM)
            self.process.send_signal(number)

    async def stop(self) -> int:
        """End the process with SIGTERM for good. Returns its exit code."""
        self.is_over = True
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, STOP_SECONDS)

    def kill(self) -> None:
        self.is_over = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def preload(libraries: Iterable[Path], **files: Path) -> dict[str, str]:
    """The environment of a process that loads these libraries, each with the file that controls it."""
    loaded = ":".join(map(str, libraries))
    return {"LD_PRELOAD": loaded, **{name: str(path) for name, path in files.items()}} if loaded else {}
