"""Runs a page of the documentation as its reader would: files are written, commands are run, output is compared.

- A block with `title="name.py"` is a file. A later block with the same title replaces it.
- A `console` block has commands after `$`, each with the output that it must print. Times, random ids and the width of
  columns may differ, and `…` stands for any text.
- A `console` block with a title such as "Terminal 1" starts a command that keeps running. The text after it is what the
  command prints first. The next block with this title stops it with Ctrl-C, as does the end of the page.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import free_port
from tests.support.waiting import wait_until

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_CHANGING = {
    r"\d\d-\d\d \d\d:\d\d(:\d\d)?": "TIME",
    r"\b[0-9a-f]{40}\b": "KEY",
    r"\bin_\d{6}\b": "INVOICE",
    r"\d+\.\d+s\b": "SECONDS",
    r"\boncehook \d+\.\d+\.\S+": "oncehook VERSION",
    r" +": " ",
}
"""Parts of an output that differ in each run, and the width of columns."""
INSTALL = re.compile(r"python3? -m venv |source |pip install ")
"""Commands that prepare the reader's computer; the suite runs in an environment that has everything."""

READ = re.compile(r"(python shop\.py|cat|grep|oncehook (events|show|effects|dead))\b")
"""Commands that change nothing. If the expected change is not visible yet, the reader looks again."""


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Return each command of a console block with its expected output."""
        return [(match[1], match[2].strip("\n")) for match in _COMMAND.finditer(self.text)]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks that a reader writes or runs, in the order of the page."""
    blocks = [Block(match[1], match[2] or "", match[3]) for match in _BLOCK.finditer(page)]
    return [block for block in blocks if block.title or block.language == "console"]


class Walkthrough:
    """A reader who follows a page in an empty folder. `binaries` has the programs, such as `oncehook`."""

    def __init__(self, folder: Path, binaries: Path = Path(sys.executable).parent, *, install: bool = False) -> None:
        self.folder = folder
        self.install = install
        self.port = free_port()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ONCEHOOK_")},
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def follow(self, page: str) -> int:
        """Follow a page to its end, and return how many commands were run."""
        count = 0
        try:
            for block in blocks_of(page):
                if block.language != "console":
                    self._write(block)
                elif block.title:
                    count += self._start(block)
                else:
                    count += sum(self._run(*command) for command in block.commands)
        finally:
            for terminal in list(self.running):
                self._stop(terminal)
        return count

    def _write(self, block: Block) -> None:
        (self.folder / block.title).write_text(self._own_port(block.text), "utf-8")
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)  # the file may change within one second

    def _run(self, command: str, expected: str) -> bool:
        if INSTALL.match(command) and not self.install:
            return False
        output = self._output_of(command)
        deadline = time.monotonic() + 20
        while READ.match(command) and not self._is_shown(expected, output) and time.monotonic() < deadline:
            output = self._output_of(command)
        if not INSTALL.match(command):
            assert self._is_shown(expected, output), f"$ {command}\n{output}\n--- the page shows\n{expected}"
        return True

    def _is_shown(self, expected: str, output: str) -> bool:
        return _matches(self._own_port(expected), output)

    def _output_of(self, command: str) -> str:
        result = subprocess.run(
            ["bash", "-c", self._with_port(command)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600 if self.install else 100,
        )
        assert result.returncode == 0 or not INSTALL.match(command), f"$ {command}\n{result.stdout}"
        return result.stdout.strip("\n")

    def _start(self, block: Block) -> bool:
        self._stop(block.title)
        ((command, expected),) = block.commands
        log = self.folder / f"{block.title}.log"
        with log.open("wb") as output:
            self.running[block.title] = subprocess.Popen(
                ["bash", "-c", f"exec {self._with_port(command)}"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(
            lambda: _matches(f"…{self._own_port(expected)}…", log.read_text("utf-8")),
            f"`{command}` prints:\n{expected}\nIt printed:\n{log.read_text('utf-8')}",
        )
        return True

    def _stop(self, terminal: str) -> None:
        if process := self.running.pop(terminal, None):
            process.send_signal(signal.SIGINT)
            process.wait(30)

    def _with_port(self, command: str) -> str:
        """Return a command with a port that no other test uses."""
        return re.sub(r"^oncehook (serve|send)\b", rf"oncehook \1 --port {self.port}", self._own_port(command))

    def _own_port(self, text: str) -> str:
        return text.replace(":8000", f":{self.port}")


def _matches(expected: str, output: str) -> bool:
    """Return whether the output is as expected, where `…` stands for any text."""
    pattern = ".*?".join(re.escape(part) for part in _normalized(expected).split("…"))
    return re.fullmatch(pattern, _normalized(output), re.DOTALL) is not None


def _normalized(text: str) -> str:
    for pattern, replacement in _CHANGING.items():
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines())
