"""The parts of `make torture`: what each one runs, when, and which invariants it shows."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import markers

ROOT = Path(__file__).parent.parent
MEASURED, WAITING, TESTING, COMPUTING = "measured", "waiting", "testing", "computing"
NICE = {MEASURED: 0, WAITING: 5, TESTING: 5, COMPUTING: 19}
"""The lanes, which run at the same time, and the priority of each. COMPUTING gets only time that no other lane uses."""
SIMULATION = ("tests/system/test_simulation.py",)
OWN_PROGRAMS = ("tests/system/test_proof_model.py",)
"""Tests that run a program which is a part itself."""


@dataclass(frozen=True)
class Part:
    """One program. Its result is NAME.json."""

    name: str
    title: str
    statement: str
    module: str
    arguments: tuple[str, ...]
    lane: str
    """MEASURED: times matter. WAITING: mostly waits for processes. TESTING: tests that compute, with time limits.
    COMPUTING: has no time limit, and takes the time that is left."""
    minutes: float
    """How many minutes the part takes in `make torture` on 2 cores."""
    invariants: tuple[str, ...] = ()
    in_memory: bool = False
    """Whether its databases are in memory, if there is enough: it creates hundreds, and cuts no power."""
    is_alone: bool = False
    """Whether WAITING and TESTING begin after its end, because they would change what it measures."""

    def command(self, *, long: bool = False) -> list[str]:
        """The command that runs it. With `long`, tests run at the length of a night."""
        options = ["--long"] if long and self.module == "pytest" else []
        return [sys.executable, "-m", self.module, *self.arguments, *options]

    @property
    def repeat(self) -> str:
        """The command that a person enters to repeat it."""
        return f"python -m proof.torture --only {self.name}"


def torture_files() -> list[str]:
    """The files with torture tests. Reading all of `tests/` would take a minute in each process."""
    files = [file for folder in ("tests", "examples") for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [file for file in files if markers.has_torture_tests(file)]
    paths = {file.parent if file.name == "conftest.py" else file for file in found}
    return sorted(str(path.relative_to(ROOT)) for path in paths if not paths & set(path.parents))


def _tests(files: Sequence[str], processes: int) -> tuple[str, ...]:
    options = ("-q", "-m", "torture", "--torture", "-o", "timeout=1800", "--durations=15")
    spread = ("-p", "tests.support.torture_results", "-n", str(processes), "--dist", "loadgroup")
    return (*options, *spread, *files)


CRASH_POINTS = ("tests/faults/test_crash_points.py",)
POWER_LOSS = ("tests/faults/test_power_loss.py", "tests/faults/test_spool_power_loss.py")
RACES = ("tests/receiver/test_steps_deliveries.py",)


def all_parts() -> list[Part]:
    """Every part, in the order of its lane."""
    others = [
        file for file in torture_files() if file not in {*CRASH_POINTS, *POWER_LOSS, *RACES, *SIMULATION, *OWN_PROGRAMS}
    ]
    faults = [file for file in others if file.startswith(("tests/faults/", "tests/intake", "tests/brokers/"))]
    checks = [file for file in others if file not in faults]
    return [
        Part(
            "load", "Load", "A service accepts a steady load in time, with flat memory and descriptors.",
            "proof.load", (), MEASURED, 5.3, ("I16",), is_alone=True,
        ),
        Part(
            "deliveries", "Deliveries under faults, PostgreSQL",
            "Deliveries that are duplicated and reordered under faults are recorded and handled once.",
            "proof.deliveries", (), MEASURED, 4.6, ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I13", "I15"),
        ),
        Part(
            "deliveries-sqlite", "Deliveries under faults, SQLite",
            "The same on SQLite, with the faults that it can have.",
            "proof.deliveries", ("--database", "sqlite", "--deliveries", "10000"), MEASURED, 1.0,
            ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8"),
        ),
        Part(
            "database-kills", "PostgreSQL killed under load",
            "SIGKILL of the whole PostgreSQL server under load loses no acked event.",
            "proof.deliveries", ("--kills", "20", "--deliveries", "2500"), MEASURED, 2.0, ("I1", "I4", "I8", "I15"),
        ),
        Part(
            "power-loss", "Power loss", "A power cut at any moment loses no acked event.",
            "pytest", _tests(POWER_LOSS, 2), MEASURED, 0.5, ("I1", "I3"),
        ),
        Part(
            "faults", "Kills and faults under load",
            "Killed processes and databases, failovers, cut links and moved shards lose no event and apply none twice.",
            "pytest", _tests(faults, 4), WAITING, 12.0,
            ("I1", "I2", "I3", "I4", "I5", "I6", "I8", "I10", "I11", "I13", "I15", "I16", "I17"),
        ),
        Part(
            "crash-points", "Crash points",
            "A process that crashes at any [point](crash-points.md) loses nothing, and another one continues.",
            "pytest", _tests(CRASH_POINTS, 6), WAITING, 4.3,
            ("I1", "I2", "I3", "I4", "I5", "I7", "I8", "I9", "I11", "I12"), in_memory=True,
        ),
        Part(
            "simulation", "Simulation",
            "The real code holds every invariant on a simulated clock, with faults at every statement.",
            "proof.simulate", ("--seeds", "0:5000"), COMPUTING, 24.0,
            ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I11", "I12", "I17"),
        ),
        Part(
            "planted-bugs", "Planted bugs", "The tests find every bug that is planted in a copy of the code.",
            "proof.planted", ("--jobs", "1"), TESTING, 10.0,
        ),
        Part(
            "races", "Races", "Of 64 concurrent deliveries of one event, exactly one is accepted.",
            "pytest", _tests(RACES, 1), TESTING, 1.1, ("I4",), in_memory=True,
        ),
        Part(
            "model", "Model", "The model holds in every order of its steps, and each of its broken variants is found.",
            "proof.check", (), COMPUTING, 1.7,
            ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I11", "I12"),
        ),
        Part(
            "traces", "Traces", "Runs of the simulation are behaviours of the model.",
            "proof.traces", ("--seeds", "0:300"), COMPUTING, 0.5,
        ),
        Part(
            "simulated-bugs", "Planted bugs in the simulation",
            "Seeds of the simulation find every bug that is planted in its process, and their traces are rejected.",
            "pytest", (*_tests(SIMULATION, 2), "-k", "planted"), COMPUTING, 0.3,
        ),
        Part(
            "checks", "Properties and hostile input",
            "Random sequences, mutated deliveries and every order of events give the same result, without an error.",
            "pytest", _tests(checks, 2), TESTING, 6.0, ("I9", "I10", "I14", "I18"), in_memory=True,
        ),
    ]  # fmt: skip
