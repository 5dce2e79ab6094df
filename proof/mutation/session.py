"""Runs the tests of one group against each of its mutants.

pytest imports and collects once. Each mutant is a fork of that process: it changes the live functions, and runs the
tests that reach the changed line until one fails. The same run without a change tells which test reaches which line.
"""

import importlib
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, NoReturn

import coverage
import pytest

from proof.mutation.operators import Mutant, Mutations
from proof.mutation.patching import apply, clear_caches, find_functions
from tests.support.servers import sqlite_file

SOURCE = Path("src/oncehook").resolve()
SEED = 19
Answer = Callable[[dict[str, Any]], NoReturn]


@dataclass
class Run:
    """The result of one mutant."""

    mutant: str
    killed_by: str | None  # None: it survived
    timeout: bool
    seconds: float


@dataclass
class MutationSession:
    """A pytest plugin, which runs mutants instead of tests."""

    files: Sequence[str]
    sample: int | None = None
    only: str = ""
    runs: list[Run] = field(default_factory=list)
    available: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # of each test
    reached: dict[tuple[str, int], set[str]] = field(default_factory=dict)  # tests by file and line

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "postgres" not in item.nodeid.partition("[")[2].split("-")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._measure(session)
        for name in self.files:
            mutations = Mutations(SOURCE / name, name)
            module = sys.modules["oncehook." + name.removesuffix(".py").replace("/", ".")]
            functions = find_functions(str(mutations.path))
            live = {function.__code__ for function in functions}
            assert mutations.original.co_consts and live, f"{name} has no functions in this process"
            for mutant in self._select(list(mutations)):
                self._try(session, mutant, mutations, functions, module)
        return True

    def _select(self, mutants: list[Mutant]) -> list[Mutant]:
        self.available += len(mutants)
        mutants = [mutant for mutant in mutants if self.only in mutant.name]
        if self.sample is None or self.sample >= len(mutants):
            return mutants
        chosen = set(random.Random(SEED).sample(range(len(mutants)), self.sample))  # noqa: S311  # not a secret
        return [mutant for index, mutant in enumerate(mutants) if index in chosen]

    def _measure(self, session: pytest.Session) -> None:
        """Run every test once without a change: which lines it reaches, and how long it takes."""
        with TemporaryDirectory() as folder:
            sqlite_file(Path(folder) / "migrated.db")  # made once per process: every fork has it
        answer = _fork(partial(_run_with_coverage, session, [str(SOURCE / name) for name in self.files]), 1800)
        if answer is None or answer["failed"]:
            raise pytest.UsageError(f"without a mutant, {answer['failed'] if answer else 'the tests'} failed")
        self.seconds = answer["seconds"]
        for name in answer["modules"]:  # what tests import on first use
            with suppress(Exception):
                importlib.import_module(name)
        for path, lines in answer["reached"].items():
            for line, tests in lines.items():
                self.reached[path, int(line)] = set(tests)

    def _try(
        self, session: pytest.Session, mutant: Mutant, mutations: Mutations, functions: list[FunctionType], module: Any
    ) -> None:
        names = set().union(*(self.reached.get((str(mutations.path), line), set()) for line in mutant.lines))
        items = sorted((item for item in session.items if item.nodeid in names), key=lambda i: self.seconds[i.nodeid])
        limits = [5 + 5 * self.seconds[item.nodeid] for item in items]

        def run(answer: Answer) -> None:
            apply(mutant, mutations.original, module, functions)
            _run_until_failure(session, items, limits, answer)

        began = time.monotonic()
        unreached: dict[str, Any] = {"killed_by": None, "timeout": False}
        answer = _fork(run, 5 + sum(limits)) if items else unreached
        answer = answer or {"killed_by": "the process ended without an answer", "timeout": True}
        self.runs.append(Run(mutant.name, answer["killed_by"], answer["timeout"], time.monotonic() - began))
        how = "killed" if answer["killed_by"] else "SURVIVED" if items else "SURVIVED, no test reaches it"
        print(f"{time.monotonic() - began:5.1f} s  {how}: {mutant.name}", flush=True)


def _fork(work: Callable[[Answer], None], limit: float) -> dict[str, Any] | None:
    """The answer of `work` in a fork of this process, or None if it gives none within `limit` seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work_in_child(work, writing)
    os.close(writing)
    text, deadline = b"", time.monotonic() + limit
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reading, 2**20)
        if not part:
            break
        text += part
    os.close(reading)
    try:
        os.killpg(child, signal.SIGKILL)  # with what its tests started
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    return json.loads(text) if text.endswith(b"\n") else None


def _work_in_child(work: Callable[[Answer], None], writing: int) -> NoReturn:
    def answer(value: dict[str, Any]) -> NoReturn:
        """Send the answer and end at once: a fixture may wait forever for what the mutant broke."""
        text = json.dumps(value).encode() + b"\n"
        while text:
            text = text[os.write(writing, text) :]
        os._exit(0)

    os.setsid()
    log = os.open(f"build/mutation-{os.getppid()}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        work(answer)
    except BaseException as error:
        answer({"killed_by": repr(error), "timeout": False, "failed": repr(error)})
    os._exit(1)


def _run_until_failure(
    session: pytest.Session, items: Sequence[pytest.Item], limits: Sequence[float], answer: Answer
) -> None:
    class Reports:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                answer({"killed_by": report.nodeid, "timeout": False})

    session.config.pluginmanager.register(Reports())
    for item, following, limit in zip(items, [*items[1:], None], limits, strict=True):
        killed: dict[str, Any] = {"killed_by": item.nodeid, "timeout": True}
        signal.signal(signal.SIGALRM, lambda *_, killed=killed: answer(killed))
        signal.setitimer(signal.ITIMER_REAL, limit)
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    answer({"killed_by": None, "timeout": False})


def _run_with_coverage(session: pytest.Session, paths: Sequence[str], answer: Answer) -> None:
    seconds: dict[str, float] = {}
    measured = coverage.Coverage(data_file=None, include=list(paths), config_file=False, messages=False)
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in paths]
    measured.start()
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        measured.switch_context(item.nodeid)
        for module in modules:
            clear_caches(module)  # so that each test reaches what it needs
        began = time.monotonic()
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds[item.nodeid] = time.monotonic() - began
        if session.testsfailed:
            answer({"failed": item.nodeid})
    measured.stop()
    data = measured.get_data()
    reached = {path: data.contexts_by_lineno(path) for path in paths}
    answer({"failed": None, "seconds": seconds, "reached": reached, "modules": list(sys.modules)})
