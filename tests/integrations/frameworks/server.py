"""An app of the suite behind its real server, as a process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.integrations.frameworks.table import Framework
from tests.support import ROOT
from tests.support.servers import free_port
from tests.support.waiting import wait_until

PROGRAMS = Path(sys.executable).parent
APPS = "tests.integrations.frameworks.apps"


class Server:
    """A running server with an app. Its log is in `log` of the folder."""

    def __init__(self, framework: Framework, database: str, folder: Path, **environment: str) -> None:
        self.framework = framework
        self.folder = folder
        self.port = free_port()
        app = f"{APPS}.{framework.module}:app"
        program, *options = [part.format(app=app, port=self.port) for part in framework.command]
        self.log = (folder / "log").open("ab")
        self.process = subprocess.Popen(
            [str(PROGRAMS / program), *options],
            stdout=self.log,
            stderr=self.log,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SHOP_DATABASE": database,
                "SHOP_FOLDER": str(folder),
                **environment,
            },
            start_new_session=True,
        )
        no_keep_alive = httpx.Limits(max_keepalive_connections=0)  # uWSGI closes connections without saying so
        self.client = httpx.Client(
            verify=False, base_url=f"http://127.0.0.1:{self.port}", timeout=30, limits=no_keep_alive
        )

    def __enter__(self) -> Self:
        wait_until(self._answers, "the server answers", within=60, ignore=(httpx.TransportError,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server did not start: {self.logged()[-2000:]}"
        return self.client.get("/").text == f"the shop {self.framework.module}"

    def kill(self) -> None:
        """Kill all its processes at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self._close()

    def end(self) -> None:
        """Send it the signal that stops it cleanly, and wait until it has exited."""
        self.process.send_signal(self.framework.stop)
        self._close()

    def logged(self) -> str:
        return (self.folder / "log").read_text()

    def _close(self) -> None:
        self.process.wait(60)
        self.client.close()
        self.log.close()
