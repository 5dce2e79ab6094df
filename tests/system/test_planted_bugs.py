"""The planted bugs in `proof/planted/`: each patch applies, names tests of the suite, and a few are planted here.

`python -m proof.planted` plants all of them.
"""

import ast
import shutil
import subprocess
from difflib import unified_diff
from functools import cache
from pathlib import Path

import pytest

from proof.planted.__main__ import plant_all
from proof.planted.bugs import FOLDER, KNOWN, Bug, read, read_all
from proof.planted.trial import Copy, PlantFailed, is_broken_code
from tests.support import ROOT

BUGS = read_all()
HEADER = "Bug: The bug.\nBreaks: Nothing.\nTest: {test}\n\n"
SURVIVOR = "tests/operations/test_prune_horizons.py::test_duration_is_formatted_as_it_would_be_written"
PRUNER = "src/oncehook/operations/prune.py"


def write_bug(folder: Path, old: str, new: str, *, in_source: str = "") -> Bug:
    """A bug that replaces a part of the pruner. `in_source` is what the patch expects in the place of `old`."""
    source = (ROOT / PRUNER).read_text("utf-8")
    assert source.count(old) == 1
    before, after = (source.replace(old, text).splitlines(keepends=True) for text in (in_source or old, new))
    path = folder / "99-of-a-test.patch"
    diff = unified_diff(before, after, f"a/{PRUNER}", f"b/{PRUNER}", n=2)
    path.write_text(HEADER.format(test=SURVIVOR) + "".join(diff))
    return read(path)


def test_every_patch_applies_to_the_source(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for bug in BUGS:
        done = subprocess.run(
            ["git", "apply", "-C1", "--check", str(bug.path)],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{bug.path.name}: renew it as CONTRIBUTING.md describes\n{done.stderr}"
        assert all((tmp_path / name).is_file() for name in bug.files) and bug.files


def test_bugs_are_numbered_and_have_different_names() -> None:
    assert [bug.number for bug in BUGS] == list(range(1, len(BUGS) + 1))
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 2 * KNOWN
    for bug in BUGS:
        assert bug.sentence.endswith(".") and bug.breaks.endswith("."), f"{bug.path.name}: write sentences"


@cache
def functions_of(path: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_names_tests_that_make_test_runs(bug: Bug) -> None:
    for test in bug.tests:
        path, _, name = test.partition("[")[0].partition("::")
        assert name in functions_of(path), f"{bug.path.name}: {path} has no test {name}"
        marks = [ast.unparse(decorator) for decorator in functions_of(path)[name].decorator_list]
        assert not any("torture" in mark for mark in marks), f"{bug.path.name}: {name} is only in the long runs"


def test_cases_of_the_bugs_are_in_the_samples_of_make_test(request: pytest.FixtureRequest) -> None:
    """Looks at the tests of this run: `make test` has them all."""
    collected = {item.nodeid.partition("@")[0] for item in request.session.items}
    functions = {name.partition("[")[0] for name in collected}
    named = [test for bug in BUGS for test in bug.tests if "[" in test and test.partition("[")[0] in functions]
    assert [test for test in named if test not in collected] == [], "name a case that `make test` runs"


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ("Bug: One.\nBreaks: Two.\n\n", "a Test"),
        ("Bug: One.\nTest: tests/x.py::test_y\n\n", "one of Breaks"),
        ("Bug: One.\nBreaks: Two.\nBecause: three\nTest: tests/x.py::test_y\n\n", "got 'Because: three'"),
    ],
)
def test_header_that_is_not_complete_is_an_error(tmp_path: Path, header: str, error: str) -> None:
    path = tmp_path / "01-name.patch"
    path.write_text(header + "--- a/src/x.py\n")
    with pytest.raises(ValueError, match=error):
        read(path)


def test_name_of_a_patch_begins_with_its_number() -> None:
    with pytest.raises(ValueError, match="NN-name"):
        read(FOLDER / "name.patch")


@pytest.mark.timeout(300)  # it runs pytest twice
def test_planted_bug_is_caught_and_a_harmless_change_survives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = write_bug(tmp_path, "BATCH = 500", "BATCH = 499")
    caught = next(bug for bug in BUGS if bug.name == "prune-after-a-day")
    problem, outcomes = plant_all([harmless, caught], tmp_path, 1, checked=False)
    assert problem == ""
    assert [(outcome.is_caught, outcome.problem) for outcome in outcomes] == [(False, ""), (True, "")]
    assert "SURVIVED  every named test passed" in capsys.readouterr().out
    assert outcomes[1].caught_by == (caught.tests[0].rpartition("::")[2],)


def test_patch_that_only_breaks_the_code_is_no_planted_bug(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy")
    for new, error in (("BATCH = 500 +", "SyntaxError"), ("BATCH = unknown", "NameError")):
        broken = write_bug(tmp_path, "BATCH = 500", new)
        with pytest.raises(PlantFailed, match=f"cannot be imported: {error}"):
            copy.plant(broken)
        copy.remove(broken)
    with pytest.raises(PlantFailed, match="does not apply"):
        copy.plant(write_bug(tmp_path, "BATCH = 500", "BATCH = 501", in_source="BATCH = 400"))


@pytest.mark.parametrize(
    ("message", "broken"),
    [
        ("AssertionError: expected within 30 s", False),
        ("NameError: name 'x' is not defined", True),
        ('sqlite3.OperationalError: near "FROM": syntax error', True),
        ('asyncpg.exceptions.UndefinedColumnError: column "x" does not exist', True),
        ('asyncpg.exceptions.InvalidSQLStatementNameError: prepared statement "x" does not exist', False),
    ],
)
def test_failure_of_broken_code_is_no_catch(message: str, broken: bool) -> None:
    assert is_broken_code(message) is broken
