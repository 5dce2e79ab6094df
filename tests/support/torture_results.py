"""A plugin of pytest that `make torture` loads: writes what the long runs did as JSON, and a line for each failure.

pytest -p tests.support.torture_results, with ONCEHOOK_PROOF_DIR and ONCEHOOK_PROOF_PART
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from proof.results import write_result
from tests.support.counts import COUNTS

PROPERTY = "counts"


class Results:
    """The sums over all tests, also of those that ran in other processes."""

    def __init__(self, part: str) -> None:
        self.part, self.began = part, time.monotonic()
        self.outcomes: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(repeat_command(report.nodeid))
        if report.when == "call" or (report.when == "setup" and report.skipped):
            self.outcomes[report.outcome] += 1
        if report.when == "call":
            counted: dict[str, Any] = dict(report.user_properties)
            self.counts.update(counted.get(PROPERTY, {}))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        write_result(
            self.part,
            {
                "ok": exitstatus == 0 and not self.failures,
                "seconds": round(time.monotonic() - self.began, 1),
                "facts": [
                    ["tests passed", self.outcomes["passed"]],
                    *([["tests skipped", self.outcomes["skipped"]]] if self.outcomes["skipped"] else []),
                    *sorted(map(list, self.counts.items())),
                ],
                "skipped": self.outcomes["skipped"],
                "failures": list(dict.fromkeys(self.failures)),
            },
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for failure in dict.fromkeys(self.failures):
            terminalreporter.line(f"Repeat: {failure}")


def repeat_command(nodeid: str) -> str:
    """The command that repeats a test. xdist adds the group of a test after its name."""
    end = nodeid.rfind("]") + 1 or nodeid.rfind("::")
    return f".venv/bin/python -m pytest --torture '{nodeid[:end]}{nodeid[end:].partition('@')[0]}'"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    COUNTS.clear()
    yield
    item.user_properties.append((PROPERTY, dict(COUNTS)))


def pytest_configure(config: pytest.Config) -> None:
    part = os.environ.get("ONCEHOOK_PROOF_PART")
    if part and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(part), "torture-results")
