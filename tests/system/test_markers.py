"""The markers of tests: which kind a test is, and that unit tests start no server."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import ROOT
from tests.support.markers import beyond_sample, has_torture_tests, has_unit_tests, is_unit_file


@pytest.mark.parametrize(
    ("folder", "source", "expected"),
    [
        ("model", "import json\n", True),
        ("model", "import subprocess\n", False),
        ("model", "from tests.support.serve import served\n", False),
        ("model", "from tests.support.receiver import serving_source\n", False),
        ("model", 'inbox = Inbox("sqlite://")\n', False),
        ("model", "pytestmark = pytest.mark.system\n", False),
        ("model", "async def test_b(\n    run: Run, rows: Rows\n) -> None: ...\n", True),
        ("faults", "import json\n", False),
        ("browser", "import json\n", False),
    ],
)
def test_file_has_unit_tests_unless_it_starts_something(
    tmp_path: Path, folder: str, source: str, expected: bool
) -> None:
    file = tmp_path / "tests" / folder / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{source}def test_a(run: Run) -> None: ...\n")
    assert is_unit_file(file) is expected


def test_file_has_no_unit_tests_if_each_takes_a_database(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "model" / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "async def test_a(\n    run: Run, rows: Rows\n) -> None: ...\ndef test_b(store: Store) -> None: ...\n"
    )
    assert not is_unit_file(file)


class Case(pytest.Item):
    """A case of a parametrized test, as pytest collects it."""

    def runtest(self) -> None: ...


def make_cases(parent: pytest.Session, file: str, mark: pytest.MarkDecorator | None = None) -> list[pytest.Item]:
    cases: list[pytest.Item] = []
    for number in range(20):
        for database in ("sqlite", "postgres"):
            case = Case.from_parent(
                parent, name=f"test_it[{number}-{database}]", nodeid=f"{file}::test_it[{number}-{database}]"
            )
            case.path = ROOT / file
            case.callspec = SimpleNamespace(params={"number": number, "database": database})  # type: ignore[attr-defined]
            if mark is not None:
                case.add_marker(mark)
            cases.append(case)
    return cases


def test_sampled_test_keeps_the_same_few_cases_in_every_process(request: pytest.FixtureRequest) -> None:
    cases = make_cases(request.session, "tests/store/test_it.py", pytest.mark.sampled(6))
    left_out = list(beyond_sample(cases, []))
    kept = {case.nodeid for case in cases} - {case.nodeid for case in left_out}
    assert len(kept) == 6 and {name.rpartition("-")[2] for name in kept} == {"sqlite]", "postgres]"}
    assert {case.nodeid for case in beyond_sample(reversed(cases), [])} == {case.nodeid for case in left_out}


def test_case_that_is_named_on_the_command_line_is_not_left_out(request: pytest.FixtureRequest) -> None:
    cases = make_cases(request.session, "tests/store/test_it.py", pytest.mark.sampled(6))
    first, *others = [case.nodeid for case in beyond_sample(cases, [])]
    assert [case.nodeid for case in beyond_sample(cases, [first])] == others


def test_upper_layers_run_on_one_of_the_databases_and_the_store_on_both(request: pytest.FixtureRequest) -> None:
    cases = make_cases(request.session, "tests/cli/test_it.py")
    left_out = [case.name for case in beyond_sample(cases, [])]
    assert sorted(name.partition("-")[0] for name in left_out) == sorted(f"test_it[{number}" for number in range(20))
    assert {name.rpartition("-")[2] for name in left_out} == {"sqlite]", "postgres]"}
    assert list(beyond_sample(make_cases(request.session, "tests/store/test_it.py"), [])) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@pytest.mark.torture\ndef test_a(store: Store) -> None: ...\n", True),
        ("@pytest.mark.long\ndef test_a(store: Store) -> None: ...\n", True),
        ("@pytest.mark.sampled(3)\ndef test_a(store: Store) -> None: ...\n", False),
    ],
)
def test_torture_reads_the_files_with_long_runs(tmp_path: Path, source: str, expected: bool) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(source)
    assert has_torture_tests(file) is expected


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("tests/model", True), ("tests/providers/families", True), ("tests/browser", False), ("examples", False)],
)
def test_folder_without_unit_tests_is_not_collected_for_them(folder: str, expected: bool) -> None:
    assert has_unit_tests(ROOT / folder) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sqlite3; sqlite3.connect(':memory:')", "a unit test opens a database"),
        ("import subprocess; subprocess.run(['true'])", "a unit test starts a process"),
        ("import socket; socket.socket().bind(('127.0.0.1', 0))", "a unit test starts a server"),
    ],
)
def test_unit_test_that_starts_something_fails(code: str, expected: str) -> None:
    program = f"from tests.support import markers\nmarkers.reject_servers()\n{code}\n"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1 and expected in result.stderr, result.stderr


def test_unit_tests_run_without_a_database_server() -> None:
    """No server program can be found in this run."""
    code = (
        "import sys, pytest\n"
        "from tests.support import programs\n"
        "programs.PROGRAMS.clear()\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-m', 'unit', 'tests/model', 'tests/config']))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
