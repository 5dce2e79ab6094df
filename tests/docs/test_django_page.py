"""The page on Django is a project: this test creates it with `django-admin startproject` and follows the page."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.documentation import PAGES
from tests.support.servers import free_port
from tests.support.waiting import wait_until

PAGE = "docs/django.md"


def blocks() -> list[tuple[str, str]]:
    """Return the language and the text of each block of the page, in order."""
    return re.findall(r"^```(python|sh)\n(.*?)^```$", PAGES[PAGE], re.DOTALL | re.MULTILINE)


class Project:
    """A folder in which the page is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ONCEHOOK_")}

    def write(self, text: str) -> None:
        """Write a block whose first line names its file. The settings are added to those of `startproject`."""
        first, _, rest = text.partition("\n")
        file = self.folder / first.removeprefix("# ")
        before = file.read_text() if file.name == "settings.py" else ""
        file.write_text(before + rest)

    def run(self, line: str) -> str:
        """Run a command of the page, with this Python and a free port in place of 8000."""
        if line.startswith(("echo", "python -m pip")):
            subprocess.run(line, shell=True, cwd=self.folder, check=True) if line.startswith("echo") else None
            return ""
        words = shlex.split(line, comments=True)
        command = [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", "django", *words[1:]]
        if "send" in words:
            command += ["--to", f"http://127.0.0.1:{self.port}/webhooks/stripe"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def serving(self) -> Iterator[None]:
        command = [sys.executable, "manage.py", "runserver", "--noreload", str(self.port)]
        with (self.folder / "server.log").open("wb") as log:
            server = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        try:
            wait_until(
                lambda: (
                    "Starting development server" in (self.folder / "server.log").read_text(errors="replace")
                    and self._listens()
                ),
                "runserver starts",
            )
            yield
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.mark.rest
def test_page_leads_from_startproject_to_a_replayed_event(tmp_path: Path) -> None:
    project = Project(tmp_path)
    commands = [line for kind, text in blocks() if kind == "sh" for line in text.splitlines()]
    before, after = commands[: _position(commands, "runserver")], commands[_position(commands, "runserver") + 1 :]
    started = time.monotonic()
    for line in before[:3]:
        project.run(line)
    for kind, text in blocks():
        if kind == "python":
            project.write(text)
    for line in before[3:]:
        project.run(line)
    with project.serving():
        sent, events, replayed, _ = (project.run(line) for line in after[:4])
        assert "202" in sent, sent
        assert "invoice.paid" in events
        assert "1" in replayed
        wait_until(lambda: _replays(project) == ("processed", 1), "the event is handled again", within=60)
    seconds = time.monotonic() - started
    assert "OK" in project.run(after[4])
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--ds=mysite.settings",
            "shop/test_invoices.py",
        ],
        cwd=tmp_path,
        env=project.environment | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout + run.stderr
    assert "no issues" in project.run("python manage.py check")
    print(f"from startproject to a replayed event: {seconds:.1f} s")


def _position(commands: list[str], word: str) -> int:
    return next(number for number, line in enumerate(commands) if word in line)


def _replays(project: Project) -> tuple[str, int]:
    event = json.loads(project.run("python manage.py oncehook events --json"))
    return event["status"], event["replays"]
