"""Shows the branch coverage of each package, and fails if one is below its goal: `make coverage`.

python -m tests.support.coverage_report coverage.json
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOALS = {
    "receiver": 95,
    "worker": 95,
    "store": 95,
    "effects": 95,
    "providers/verify.py": 100,
    "providers/signatures.py": 100,
}
"""Package or module → the least percentage of lines and branches that its tests must run."""


@dataclass
class Coverage:
    """How many lines and branches there are, and how many of them ran."""

    total: int = 0
    ran: int = 0

    def add(self, summary: dict[str, Any]) -> None:
        self.total += summary["num_statements"] + summary["num_branches"]
        self.ran += summary["covered_lines"] + summary["covered_branches"]

    @property
    def percent(self) -> float:
        return 100 * self.ran / self.total if self.total else 100.0


def measure(report: dict[str, Any]) -> dict[str, Coverage]:
    """The coverage of each package, and of each module that has a goal."""
    found: dict[str, Coverage] = defaultdict(Coverage)
    for path, file in report["files"].items():
        module = path.partition("oncehook/")[2]
        for name in {module.partition("/")[0], module} & ({*GOALS} | {module.partition("/")[0]}):
            found[name].add(file["summary"])
    return dict(found)


def main(path: str) -> int:
    found = measure(json.loads(Path(path).read_text()))
    missed = [name for name, goal in GOALS.items() if found.get(name, Coverage()).percent < goal or name not in found]
    for name, coverage in sorted(found.items()):
        goal = f"goal {GOALS[name]} %" if name in GOALS else ""
        print(f"{name:<28} {coverage.percent:6.1f} %  {goal}{'  MISSED' if name in missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
