"""The simulation in `proof/`: seeds hold, give the same run each time, and find planted bugs.

It replaces the clock and the threads of the code for its Python process, so each test runs it in another one.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proof.tlc import MISSING_JAVA
from tests.support import ROOT

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason=MISSING_JAVA)


def run_proof(*arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if folder is not None:
        environment["ONCEHOOK_PROOF_DIR"] = str(folder)
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def results_of(folder: Path, name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return results


FIND = """
import json, sys
from proof.simulate import first_failure, shrink
found = {}
for plant in sys.argv[2:]:
    run = first_failure(range(int(sys.argv[1])), plant)
    assert run is not None, f"{plant} was not found in {sys.argv[1]} seeds"
    shortest = shrink(run, plant)
    faults = {"faults": len(run.faults), "shrunk": len(shortest.faults)}
    found[plant] = {"seeds": run.seed + 1, "failure": run.failure, **faults}
print(json.dumps(found))
"""
QUICK_FAULTS = (
    "crash before statement",
    "crash during statement",
    "crash after statement",
    "error before COMMIT",
    "error during statement",
    "error after COMMIT",
    "error before connect",
    "lost response",
    "duplicate delivery",
    "reordered event",
    "SIGSTOP",
    "clock jump",
    "graceful stop",
    "replay",
)
QUICK_PLANTS = {
    "ack-before-commit": {"I1"},
    "prune-inside-window": {"I1", "I12"},
    "mark-before-call": {"I11"},
    "stale-subscriptions": {"I1"},
}


def test_seeds_hold_every_invariant(tmp_path: Path) -> None:
    done = run_proof("-m", "proof.simulate", "--seeds", "0:30", "--jobs", "1", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    results = results_of(tmp_path, "simulation")
    assert results["seeds"] == 30 and results["failures"] == {}
    assert results["kills"] > 15, "the seeds kill too few processes to prove anything"
    for fault in QUICK_FAULTS:
        assert results["counts"].get(fault, 0) > 0, f"no seed had the fault {fault!r}"
    assert results["ok"] and results["command"] == "python -m proof.simulate --seeds 0:30"
    assert ["faults", results["faults"]] in results["facts"]


def test_seed_gives_the_same_run_in_another_process() -> None:
    first, second = (run_proof("-m", "proof.simulate", "--seed", "16").stdout for _ in range(2))
    assert first == second and "every invariant holds" in first


AFTER_OTHERS = """
from proof.simulation.run import run_seed
seeds = (2, 3, 8, 12, 14)
first = {seed: run_seed(seed).log for seed in seeds}
for seed in reversed(seeds):
    assert run_seed(seed).log == first[seed], f"seed {seed} depends on the seeds before it"
"""
CLOSED = """
import sqlite3
from proof.simulation.run import machine
from proof.simulation.scenario import Scenario
from proof.simulation.world import World

machine().start(World(Scenario(0), machine().path, machine().observer))
connect = lambda: machine().driver.connect(machine().path, isolation_level=None)
closed = connect()
closed.execute("BEGIN IMMEDIATE")
unread = closed.execute("INSERT INTO ledger VALUES (1, 0, 'main'), (2, 0, 'main') RETURNING receipt")
closed.close()
for use in (lambda: closed.execute("SELECT 1"), closed.cursor, closed.rollback, unread.fetchone):
    try:
        use()
    except sqlite3.ProgrammingError:
        pass
    else:
        raise AssertionError("a closed connection could be used")
other = connect()  # it has the connection that was behind the closed one
other.execute("BEGIN IMMEDIATE")
assert other.execute("SELECT count(*) FROM ledger").fetchone() == (0,), "closing did not roll back"
closed.close()
assert other.in_transaction, "closing twice ended the transaction of another process"
"""


def test_seed_gives_the_same_run_after_other_seeds() -> None:
    done = run_proof("-c", AFTER_OTHERS)
    assert done.returncode == 0, done.stderr[-3000:]


def test_closed_connection_of_the_simulation_cannot_be_used_and_holds_no_lock() -> None:
    done = run_proof("-c", CLOSED)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.torture
def test_planted_bugs_are_found_and_shrunk() -> None:
    done = run_proof("-c", FIND, "30", *QUICK_PLANTS)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for plant, invariants in QUICK_PLANTS.items():
        failure = found[plant]["failure"]
        assert failure.partition(":")[0] in invariants, f"{plant} was found as {failure!r}"
    assert all(result["shrunk"] <= result["faults"] for result in found.values())


@pytest.mark.torture
def test_five_thousand_seeds_hold_every_invariant(tmp_path: Path) -> None:
    folder = Path(os.environ.get("ONCEHOOK_PROOF_DIR", tmp_path))
    done = run_proof("-m", "proof.simulate", "--seeds", "0:5000", folder=folder)
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    results = results_of(folder, "simulation")
    assert results["seeds"] == 5000 and results["faults"] >= 50_000


@pytest.mark.torture
def test_every_planted_bug_is_found(tmp_path: Path) -> None:
    plants = ["unfenced-settle", "attempt-at-failure", *QUICK_PLANTS]
    done = run_proof("-c", FIND, "1000", *plants)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    folder = Path(os.environ.get("ONCEHOOK_PROOF_DIR", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "planted.json").write_text(done.stdout)


@needs_java
@pytest.mark.torture
def test_three_hundred_runs_are_behaviours_of_the_model(tmp_path: Path) -> None:
    folder = Path(os.environ.get("ONCEHOOK_PROOF_DIR", tmp_path))
    done = run_proof("-m", "proof.traces", "--seeds", "0:300", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert results_of(folder, "traces")["runs"] == 300


@needs_java
@pytest.mark.torture
def test_runs_with_a_planted_bug_are_not_behaviours_of_the_model(tmp_path: Path) -> None:
    for plant in ("ack-before-commit", "mark-before-call"):
        done = run_proof("-m", "proof.traces", "--seeds", "0:10", "--plant", plant, folder=tmp_path)
        assert done.returncode == 1 and "deadlock" in done.stdout, done.stdout + done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == [], "a run with a planted bug is no result of the proof"
