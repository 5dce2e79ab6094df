"""Rules about the source tree: its drawing in docs/architecture.md, sizes, and calls that name their arguments."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.xdist_group("architecture")  # one process parses the files
SOURCE = ROOT / "src" / "oncehook"
MAX_POSITIONAL = 5
MAX_LINES_IN_A_FILE = 400
MAX_LINES_IN_A_FUNCTION = 60


def drawn_packages(page: str) -> set[str]:
    """The packages in the drawn tree, as paths below src/oncehook."""
    tree = page.partition("src/oncehook/\n")[2].partition("```")[0]
    parents: list[str] = []
    found = set()
    for indent, name in re.findall(r"^( +)(\w+)/ ", tree, re.MULTILINE):
        parents[len(indent) // 2 - 1 :] = [name]
        found.add("/".join(parents))
    return found


def test_architecture_draws_every_package() -> None:
    packages = {str(file.parent.relative_to(SOURCE)) for file in SOURCE.rglob("*/__init__.py")} - {"."}
    assert drawn_packages((ROOT / "docs" / "architecture.md").read_text("utf-8")) == packages


def test_every_package_says_what_it_is_for() -> None:
    first = {file: file.read_text("utf-8").partition("\n")[0] for file in SOURCE.rglob("__init__.py")}
    assert [file for file, line in first.items() if not line.startswith('"""')] == []


@cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


def declared_names() -> set[str]:
    """The classes, functions and methods of the package."""
    trees = [parse(file.read_text("utf-8")) for file in SOURCE.rglob("*.py")]
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}


def imported_from_elsewhere(tree: ast.AST) -> set[str]:
    """Names in a module that other packages declare."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    others = [node for node in imports if not (node.module or "").startswith("oncehook")]
    return {alias.asname or alias.name for node in others for alias in node.names}


def long_positional_calls(source: str, ours: set[str]) -> Iterator[str]:
    """Calls of one of `ours` with more positional arguments than a reader can count."""
    tree = parse(source)
    known = (ours | {"cls"}) - imported_from_elsewhere(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in known:
                yield f"{node.lineno}: {name} with {len(node.args)} positional arguments"


def test_a_call_with_more_than_five_arguments_names_them() -> None:
    ours = declared_names()
    found = {file: list(long_positional_calls(file.read_text("utf-8"), ours)) for file in SOURCE.rglob("*.py")}
    assert {str(file.relative_to(SOURCE)): calls for file, calls in found.items() if calls} == {}


def test_long_positional_calls_are_found() -> None:
    assert list(long_positional_calls("Claim(1, 2, 3, 4, 5, 6)", {"Claim"})) == ["1: Claim with 6 positional arguments"]
    assert list(long_positional_calls("a.settle(1, 2, 3, 4, 5, *six)", {"settle"})) != []
    assert list(long_positional_calls("Claim(1, 2, 3, 4, 5, six=6)", {"Claim"})) == []
    assert list(long_positional_calls("from rich import Claim; Claim(1, 2, 3, 4, 5, 6)", {"Claim"})) == []


def test_files_and_functions_are_short() -> None:
    texts = {str(file.relative_to(SOURCE)): file.read_text("utf-8") for file in SOURCE.rglob("*.py")}
    files = {name: count for name, text in texts.items() if (count := len(text.splitlines())) > MAX_LINES_IN_A_FILE}
    functions = {
        f"{name}: {node.name}": count
        for name, text in texts.items()
        for node in ast.walk(parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (count := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_LINES_IN_A_FUNCTION
    }
    assert (files, functions) == ({}, {})
