"""The tests of changed files: `make test-changed`, or `python -m tests.support.changed [BASE]` to print them.

The test of a module is where the mirror says, and in the files beside it whose names begin with that name. The tests
of the modules that import a changed module run too.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

from tests.support import ROOT

EVERYTHING = ("tests/support/", "tests/conftest.py", "pyproject.toml", "requirements/", "Makefile")
"""A change here can change any test."""

OTHERS = {
    "docs/": "tests/docs",
    "README.md": "tests/docs",
    "CHANGELOG.md": "tests/docs",
    "CONTRIBUTING.md": "tests/docs",
    "deploy/": "tests/system/test_deploy.py",
    "bench/": "tests/system/test_bench.py",
    "examples/": "examples",
    "src/oncehook/providers/catalog/": "tests/providers",
    "src/oncehook/store/sql/": "tests/store",
    "src/oncehook/web/": "tests/web",
}
"""Beginning of a path that is not a module → its tests."""


def changed_files(base: str) -> list[str]:
    """Paths that differ from the commit where this branch left `base`, and files that git does not know yet."""
    fork = _git("merge-base", "HEAD", base).strip()
    return sorted({*_git("diff", "--name-only", fork).split(), *_git("ls-files", "-o", "--exclude-standard").split()})


def select_tests(paths: Iterable[str]) -> list[str]:
    """The test files and folders to run for changes of these paths; `tests` if anything may have changed."""
    selected: set[str] = set()
    for path in paths:
        if path.startswith(EVERYTHING):
            return ["tests"]
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            selected.add(path)
        elif path.startswith("tests/"):
            selected.add(str(Path(path).parent))
        elif path.startswith("src/oncehook/") and path.endswith(".py"):
            selected.update(_tests_of_module(path))
        else:
            selected.update(tests for start, tests in OTHERS.items() if path.startswith(start))
    return sorted(path for path in selected if (ROOT / path).exists())


def mirror(module: str) -> Path:
    """The path of the test of a module: `src/oncehook/worker/settle.py` → `tests/worker/test_settle.py`."""
    path = Path(module).relative_to("src/oncehook")
    return Path("tests") / path.parent / f"test_{path.name}"


def _tests_of_module(path: str) -> list[str]:
    name = ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")
    graph = grimp.build_graph("oncehook")
    importers = graph.find_modules_that_directly_import(name) if name in graph.modules else set()
    return [test for module in {name, *importers} for test in _existing_tests(module)]


def _existing_tests(name: str) -> list[str]:
    path = mirror(f"src/{name.replace('.', '/')}.py")
    folder = ROOT / path.parent
    return [str(file.relative_to(ROOT)) for file in folder.glob(f"{path.stem}*.py")] if folder.is_dir() else []


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(" ".join(select_tests(changed_files(sys.argv[1] if len(sys.argv) > 1 else "main"))))
