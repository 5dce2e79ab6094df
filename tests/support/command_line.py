"""The command line: the result of a command in the test's process, and commands as processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    error: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


def run_process(*arguments: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a process, and wait for its end."""
    command = [sys.executable, "-m", "oncehook", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, cwd=cwd, env={**os.environ, **environment}
    )
