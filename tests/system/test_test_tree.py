"""Rules about the tests: where they are, that they never sleep, and that what they share is defined once."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.changed import mirror

TESTS = ROOT / "tests"
pytestmark = pytest.mark.xdist_group("test_tree")  # one process parses the files
SHARED = ("eventually", "wait_until", "claim", "make_claim", "free_port")


def files_of_tests() -> Iterator[Path]:
    """The files of tests, without what they share."""
    return (file for file in TESTS.rglob("*.py") if "support" not in file.parts)


@cache
def functions(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module, without those inside other functions and classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, kinds)]


def test_every_module_has_its_test_where_the_mirror_says() -> None:
    modules = [file for file in (ROOT / "src" / "oncehook").rglob("*.py") if not file.name.startswith("__")]
    expected = [mirror(str(file.relative_to(ROOT))) for file in modules]
    assert [str(path) for path in expected if not (ROOT / path).exists()] == [], "these tests are missing"


def test_no_test_sleeps() -> None:
    sleepers = [str(file.relative_to(ROOT)) for file in files_of_tests() if re.search(r"\bsleep\(", file.read_text())]
    assert sleepers == [], "wait with tests.support.waiting, which returns as soon as the condition holds"


def test_shared_helpers_are_defined_once() -> None:
    defined = defaultdict(list)
    for file in TESTS.rglob("*.py"):
        for function in functions(file):
            defined[function.name].append(str(file.relative_to(ROOT)))
    assert {name: files for name in SHARED if len(files := defined[name]) != 1} == {}


def test_no_helper_is_a_copy_of_another() -> None:
    copies = defaultdict(list)
    for file in TESTS.rglob("*.py"):
        for function in functions(file):
            statements = function.body[ast.get_docstring(function) is not None :]
            if len(statements) > 1 and not function.decorator_list and not function.name.startswith("test_"):
                copies["\n".join(map(ast.unparse, statements))].append(f"{file.relative_to(ROOT)}: {function.name}")
    assert [places for places in copies.values() if len(places) > 1] == [], "define the helper once, in tests/support"


def test_helpers_that_assert_are_called_assert() -> None:
    odd = [
        f"{file.relative_to(ROOT)}: {function.name}"
        for file in files_of_tests()
        for function in functions(file)
        if not function.name.startswith(("test_", "assert_", "pytest_")) and not function.decorator_list
        if returns_nothing(function) and only_asserts(function)
    ]
    assert odd == []


def only_asserts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function ends in an assertion, and neither awaits nor calls anything for its effect."""
    effects = (ast.Await, ast.Expr)
    nodes = [node for node in ast.walk(function) if isinstance(node, effects)]
    return isinstance(function.body[-1], ast.Assert) and all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in nodes
    )


def returns_nothing(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(function.returns, ast.Constant) and function.returns.value is None


def test_files_of_tests_are_short() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text("utf-8").splitlines()) for file in files_of_tests()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
