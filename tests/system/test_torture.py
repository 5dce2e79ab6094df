"""`make torture`: it runs the parts of the proof in lanes, and says how to repeat what failed."""

import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from proof.arguments import at_least, seed_range
from proof.parts import COMPUTING, MEASURED, NICE, OWN_PROGRAMS, TESTING, WAITING, all_parts, torture_files
from tests.support import ROOT
from tests.support.servers import _is_alive
from tests.support.torture_results import repeat_command
from tests.support.waiting import wait_until

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts a job in the background
from proof.parts import COMPUTING, MEASURED, Part
from proof.torture import main
folder = sys.argv.pop(1)
sys.path.insert(0, folder)
sys.exit(main([
    Part("good", "Good", "It holds.", "good", (), MEASURED, 0.1),
    Part("bad", "Bad", "It does not.", "bad", (), COMPUTING, 0.1),
    Part("silent", "Silent", "It writes no result.", "silent", (), MEASURED, 0.1),
    Part("endless", "Endless", "It does not end.", "endless", (), MEASURED, 0.1),
]))
"""
MODULES = {
    "good": "from proof.results import write_result\nwrite_result('good', {'ok': True, 'facts': [['kills', 1234]]})",
    "bad": "from proof.results import write_result\n"
    "write_result('bad', {'ok': False, 'failures': ['python -m bad --seed 7']})\nraise SystemExit(1)",
    "silent": "print('nothing')",
    "endless": "import os, pathlib, subprocess, sys, threading\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
    "pathlib.Path(os.environ['ONCEHOOK_PROOF_DIR'], 'pids').write_text(f'{os.getpid()} {child.pid}\\n')\n"
    "threading.Event().wait()",
}


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-c", PROGRAM, str(folder), "--results", str(folder / "results"), *options]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_parts_run_and_each_failure_has_the_command_that_repeats_it(tmp_path: Path) -> None:
    names = ["good", "bad", "silent"]
    with start(tmp_path, *(f"--only={name}" for name in names)) as process:
        output, _ = process.communicate(timeout=60)
    states = {line.split()[0]: line for line in output.splitlines() if line.split()[:1] and line.split()[0] in names}
    assert process.returncode == 1, output
    assert " ok " in states["good"] and "1,234 kills" in states["good"], output
    for name in ("bad", "silent"):
        assert f"{name} failed." in output and f"Repeat: python -m proof.torture --only {name}" in output, output
    assert "  python -m bad --seed 7" in output
    assert json.loads((tmp_path / "results" / "good.json").read_text())["cpu_seconds"] >= 0
    assert (tmp_path / "results" / "silent.log").read_text() == "nothing\n"


def test_interrupt_ends_the_processes_of_every_part(tmp_path: Path) -> None:
    with start(tmp_path, "--only=endless") as process:
        pids = tmp_path / "results" / "pids"
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), "the part runs", within=60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Interrupted" in output, output
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not _is_alive(pid), "the part and its own process have ended")  # type: ignore[misc]


LANES = """
import sys
from proof.parts import COMPUTING, MEASURED, TESTING, WAITING, Part
from proof.torture import main
modules = {"alone": MEASURED, "waiting": WAITING, "testing": TESTING, "computing": COMPUTING}
sys.exit(main([Part(name, name, "It holds.", name, (), lane, 0.1, is_alone=name == "alone")
               for name, lane in modules.items()]))
"""
RECORD = """
import os, pathlib, sys, time
from proof.results import write_result
from tests.support.waiting import wait_until
folder, name = pathlib.Path(os.environ["ONCEHOOK_PROOF_DIR"]), os.environ["ONCEHOOK_PROOF_PART"]
began = time.monotonic()
if name == "alone":
    wait_until((folder / "computing.json").exists, "the part that takes the time that is left runs beside it")
session = pathlib.Path("/proc/self/autogroup")
write_result(name, {
    "ok": True, "began": began, "ended": time.monotonic(), "nice": os.nice(0), "facts": [],
    "session": session.read_text().split()[-1] if session.exists() else None,
    "policy": os.sched_getscheduler(0) if hasattr(os, "SCHED_IDLE") else None,
})
"""


@pytest.mark.rest
def test_only_a_part_that_takes_the_time_that_is_left_runs_beside_the_load(tmp_path: Path) -> None:
    names = ["alone", "waiting", "testing", "computing"]
    for name in names:
        (tmp_path / f"{name}.py").write_text(RECORD)
    results = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-c", LANES, "--results", str(results), *(f"--only={name}" for name in names)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {name: json.loads((results / f"{name}.json").read_text()) for name in names}
    for name in ("waiting", "testing"):
        assert found[name]["began"] > found["alone"]["ended"], f"{name} disturbed the part that is alone"
    mine = os.nice(0)
    lanes = {"alone": MEASURED, "waiting": WAITING, "testing": TESTING, "computing": COMPUTING}
    for name, lane in lanes.items():
        assert found[name]["nice"] == min(19, mine + NICE[lane])
        assert found[name]["session"] in (None, str(NICE[lane])), "the session has another priority than its process"
    if hasattr(os, "SCHED_IDLE"):
        assert [name for name in names if found[name]["policy"] == os.SCHED_IDLE] == ["computing"]


def test_every_torture_test_is_in_one_part() -> None:
    parts = all_parts()
    assert {part.lane for part in parts} == NICE.keys()
    files = [argument for part in parts for argument in part.arguments if argument.startswith(("tests/", "examples/"))]
    assert sorted([*files, *OWN_PROGRAMS]) == torture_files()


SAMPLE = """
from tests.support.counts import count

def test_good():
    count("kills", 20)

def test_more():
    count("kills", 3)

def test_bad():  # what it did is not counted
    count("kills", 1)
    raise AssertionError
"""


@pytest.mark.rest
def test_counts_of_tests_in_several_processes_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    command = ["-m", "pytest", "-q", "-p", "tests.support.torture_results", "-p", "no:cacheprovider", "-n", "2"]
    environment = {**os.environ, "ONCEHOOK_PROOF_DIR": str(tmp_path), "ONCEHOOK_PROOF_PART": "sample"}
    done = subprocess.run(
        [sys.executable, *command, "test_sample.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    result = json.loads((tmp_path / "sample.json").read_text())
    assert result["facts"] == [["tests passed", 2], ["kills", 23]] and result["ok"] is False
    repeat = ".venv/bin/python -m pytest --torture 'test_sample.py::test_bad'"
    assert result["failures"] == [repeat] and f"Repeat: {repeat}" in done.stdout


@pytest.mark.parametrize("name", ["test_x", "test_x[sqlite]", "test_x[a@b]", "test_x[[]"])
def test_command_that_repeats_a_test_does_not_name_its_group(name: str) -> None:
    expected = f".venv/bin/python -m pytest --torture 'tests/test_y.py::{name}'"
    assert repeat_command(f"tests/test_y.py::{name}") == expected
    assert repeat_command(f"tests/test_y.py::{name}@brokers") == expected


def test_options_that_are_no_numbers_or_seeds_are_errors() -> None:
    assert seed_range("3:5") == range(3, 5) and at_least(2)("2") == 2
    for text in ("", "5", "5:", ":5", "5:5", "a:b", "-1:4"):
        with pytest.raises(ArgumentTypeError, match="such as 0:5000"):
            seed_range(text)
    for text in ("", "1", "-3", "ten", "2.5"):
        with pytest.raises(ArgumentTypeError, match="a number of at least 2"):
            at_least(2)(text)


@pytest.mark.rest
def test_longest_runs_need_an_option() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/faults/test_soak.py"]

    def collected(*options: str) -> list[str]:
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
        return [line.rpartition("[")[2] for line in done.stdout.splitlines() if "::" in line]

    assert collected("--torture") == ["sqlite]"]
    assert collected("--long") == ["sqlite]", "postgres]"]
