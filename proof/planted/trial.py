"""Plants a bug in a copy of the source tree, and runs the tests that must catch it."""

import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proof.planted.bugs import ROOT, Bug

COPIED = ("src", "tests", "docs", "proof", "bench", "examples", "deploy", "requirements")
NO_CATCH = ("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError")
"""A test that fails with one of these errors shows that the patch is broken, not that the bug was caught."""

SQL_ERRORS = re.compile(
    r"syntax error|no such (?:column|table|function)|(?:column|relation|function) \S+ does not exist"
)
SECONDS = 1800
"""The most that one run of tests may take. Each test has its own limit, which is much shorter."""


class PlantFailed(Exception):
    """A bug cannot be planted: its patch does not apply, or the result cannot be imported."""


@dataclass(frozen=True)
class Ran:
    """The result of a run of tests: how many passed, which failed, and a problem of the run itself."""

    passed: int
    failed: tuple[str, ...]
    problem: str
    seconds: float


class Copy:
    """A copy of the tree, whose tests import the package from the copy."""

    def __init__(self, folder: Path, cluster: Path | None = None) -> None:
        """With `cluster`, all runs of tests use the PostgreSQL in that folder. The first that needs it starts it."""
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "*.db", "site", "node_modules")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("Makefile"), *ROOT.glob("LICENSE")):
            shutil.copy2(path, folder / path.name)
        if (ROOT / ".venv").exists():
            (folder / ".venv").symlink_to((ROOT / ".venv").resolve())  # some tests run the command in it
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("ONCEHOOK_", "PYTEST_", "COV"))
        }
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each run would compile every file again
        self.environment["PYTHONPATH"] = str(folder / "src")
        if cluster is not None:
            self.environment["ONCEHOOK_TEST_CLUSTER"] = str(cluster)
        # Without this, git applies nothing if a folder above the copy is a repository.
        self.environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)

    def plant(self, bug: Bug) -> None:
        """Apply the patch. Raises PlantFailed unless it applies and the changed modules can be imported."""
        self._apply(bug.path)
        modules = [
            name.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            for name in bug.files
            if name.endswith(".py")
        ]
        check = (
            "import importlib, sys, oncehook\n"
            f"assert oncehook.__file__.startswith({str(self.folder)!r}), oncehook.__file__\n"
            "for name in sys.argv[1:]: importlib.import_module(name)\n"
        )
        done = self._run(sys.executable, "-c", check, *modules)
        if done.returncode:
            raise PlantFailed(f"with the bug, the code cannot be imported: {done.stderr.strip().splitlines()[-1]}")

    def _apply(self, patch: Path) -> None:
        # -C1: one line of context is enough, so that a change nearby does not spoil the patch.
        done = self._run("git", "apply", "-C1", "--whitespace=nowarn", str(patch))
        if done.returncode:
            raise PlantFailed(f"the patch does not apply: {done.stderr.strip()}")

    def remove(self, bug: Bug) -> None:
        """Restore the files that the patch changed."""
        for name in bug.files:
            shutil.copyfile(ROOT / name, self.folder / name)
            self._forget_bytecode(self.folder / name)

    def _forget_bytecode(self, source: Path) -> None:
        """Delete compiled files. A source that changed within a second and kept its size looks unchanged to Python."""
        for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
            compiled.unlink()

    def run_tests(self, tests: Sequence[str], *, at_first_failure: bool) -> Ran:
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
        began = time.monotonic()
        done = self._run(sys.executable, "-m", "pytest", *options, *(["-x"] if at_first_failure else []), *tests)
        seconds = time.monotonic() - began
        if not report.exists():
            return Ran(0, (), _last_lines(done.stdout + done.stderr), seconds)
        return _read_report(report, done, seconds)

    def _run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # noqa: S603  # pytest and git, with arguments from the repository
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


def _read_report(report: Path, done: "subprocess.CompletedProcess[str]", seconds: float) -> Ran:
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314  # written by pytest, just now
    passed, failed, problem = 0, [], ""
    for case in cases:
        failure, error = case.find("failure"), case.find("error")
        if failure is not None:
            message = failure.get("message") or ""
            if is_broken_code(message):
                problem = f"{case.get('name')} failed because the code is broken: {message.splitlines()[0]}"
            else:
                failed.append(case.get("name") or "")
        elif error is not None:
            problem = f"{case.get('name')}: {(error.get('message') or 'an error').splitlines()[0]}"
        elif case.find("skipped") is None:
            passed += 1
        else:
            problem = problem or f"{case.get('name')} was skipped"
    if not passed and not failed and not problem:
        problem = _last_lines(done.stdout)
    return Ran(passed, tuple(failed), problem, seconds)


def is_broken_code(message: str) -> bool:
    """Whether a test failed only because the patch makes code that cannot run, so the bug is not caught."""
    return message.startswith(NO_CATCH) or bool(SQL_ERRORS.search(message.partition("\n")[0]))


def _last_lines(output: str) -> str:
    return " / ".join(output.strip().splitlines()[-3:])
