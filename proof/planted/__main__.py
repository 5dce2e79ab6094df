"""Plants each bug in a copy of the source tree, and shows which tests catch it: `python -m proof.planted`."""

import argparse
import os
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from proof.arguments import at_least
from proof.planted.bugs import Bug, read_all
from proof.planted.trial import Copy, PlantFailed, Ran
from proof.results import write_result
from tests.support.servers import Postgres

COMMAND = "python -m proof.planted"


@dataclass(frozen=True)
class Outcome:
    """Whether the tests caught a planted bug."""

    bug: Bug
    caught_by: tuple[str, ...]
    problem: str
    seconds: float

    @property
    def is_caught(self) -> bool:
        return bool(self.caught_by)

    def line(self) -> str:
        result = "caught" if self.is_caught else "SURVIVED"
        return f"{self.bug.number:02} {self.bug.name:36} {self.seconds:5.1f} s  {result:8}  {self._detail()}"

    def _detail(self) -> str:
        return ", ".join(self.caught_by) or self.problem or "every named test passed"

    def row(self) -> dict[str, object]:
        return {
            "number": self.bug.number,
            "name": self.bug.name,
            "bug": self.bug.sentence,
            "breaks": self.bug.breaks,
            "caught_by": list(self.caught_by),
            "problem": self.problem,
            "seconds": round(self.seconds, 1),
        }


def attempt(copy: Copy, bug: Bug) -> Outcome:
    """Plant a bug, run its tests, and remove it."""
    began = time.monotonic()
    try:
        copy.plant(bug)
        ran = copy.run_tests(bug.tests, at_first_failure=True)
    except PlantFailed as error:
        ran = Ran(0, (), str(error), 0.0)
    finally:
        copy.remove(bug)
    return Outcome(bug, ran.failed, ran.problem, time.monotonic() - began)


def check_without_bugs(copy: Copy, bugs: Sequence[Bug]) -> str:
    """Run all tests once on the unchanged copy. Returns what is wrong: a test that fails anyway catches nothing."""
    ran = copy.run_tests(list(dict.fromkeys(test for bug in bugs for test in bug.tests)), at_first_failure=False)
    print(f"without a bug: {ran.passed} tests passed in {ran.seconds:.1f} s", flush=True)
    return ran.problem or ", ".join(ran.failed)


def plant_all(bugs: Sequence[Bug], folder: Path, jobs: int, *, checked: bool = True) -> tuple[str, list[Outcome]]:
    """Plant every bug. Returns what is wrong with the tests themselves, and the outcome of each bug."""
    try:
        return _plant_all(bugs, folder, jobs, checked=checked)
    finally:
        Postgres.stop_shared(folder)  # all runs of tests share it


def _plant_all(bugs: Sequence[Bug], folder: Path, jobs: int, *, checked: bool) -> tuple[str, list[Outcome]]:
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for number in range(min(jobs, len(bugs))):
        copies.put(Copy(folder / f"copy{number}", cluster=folder))
    if checked:
        copy = copies.get()
        problem = check_without_bugs(copy, bugs)
        copies.put(copy)
        if problem:
            return problem, []

    def plant(bug: Bug) -> Outcome:
        copy = copies.get()
        try:
            outcome = attempt(copy, bug)
        finally:
            copies.put(copy)
        print(outcome.line(), flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        return "", list(pool.map(plant, bugs))


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="a number, or a part of a name")
    parser.add_argument(
        "--jobs", type=at_least(1), default=os.cpu_count() or 1, help="bugs that are planted at the same time"
    )
    parser.add_argument("--list", action="store_true", help="list the bugs and plant none")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests on the unchanged source first")
    options = parser.parse_args()
    bugs = [bug for bug in read_all() if not options.only or any(part in bug.path.name for part in options.only)]
    if not bugs:
        parser.error(f"no bug has {' or '.join(options.only or [])} in its name")
    if options.list:
        print("\n".join(f"{bug.number:02} {bug.name:36} {bug.sentence}" for bug in bugs))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oncehook-planted-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        problem, outcomes = plant_all(bugs, Path(folder), options.jobs, checked=not options.unchecked)
    if problem:
        print(f"the tests fail without a bug: {problem}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    caught = [outcome for outcome in outcomes if outcome.is_caught]
    print()
    print("\n".join(outcome.line() for outcome in outcomes))
    print(f"\n{len(caught)} of {len(outcomes)} planted bugs were caught, in {seconds:.0f} s")
    if not options.only:
        report(outcomes, seconds)
    return int(len(caught) < len(outcomes))


def report(outcomes: Sequence[Outcome], seconds: float) -> None:
    caught = sum(outcome.is_caught for outcome in outcomes)
    write_result(
        "planted-bugs",
        {
            "title": "Planted bugs",
            "statement": f"Of {len(outcomes)} bugs that were planted one at a time, the tests of `make test` caught "
            f"{caught}.",
            "ok": caught == len(outcomes),
            "seconds": round(seconds, 1),
            "facts": [
                ["planted bugs", len(outcomes)],
                ["caught", caught],
                ["known mistakes of other systems", sum(outcome.bug.is_known for outcome in outcomes)],
            ],
            "command": COMMAND,
            "bugs": [outcome.row() for outcome in outcomes],
        },
    )


if __name__ == "__main__":
    sys.exit(main())
