"""The command line as its entry point runs it, inside the test's process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
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
