"""The tests of changed files: `make test-changed`, or `python -m tests.support.changed [BASE]` to print them.

The test of a module is where the mirror says, and in the files beside it whose names begin with that name. The tests
of the modules that import a changed module run too, and so do the tests that read the whole source.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

from tests.support import ROOT

EVERYTHING = ("tests/support/", "tests/conftest.py", "pyproject.toml", "requirements/", "Makefile")
"""A change here can change any test."""

EVERY_MODULE = ("tests/docs/test_pages.py", "tests/system/test_architecture.py", "tests/system/test_test_tree.py")
"""The tests that read the whole source: the generated blocks of the documentation, the size of files, the mirror."""

OTHERS = {
    "docs/": ("tests/docs",),
    "deploy/": ("tests/system/test_deploy.py", "tests/system/test_prometheus.py"),
    "bench/": ("tests/system/test_bench.py",),
    "examples/": ("examples",),
    ".ci/": ("tests/system/test_workflows.py",),
    ".github/": ("tests/system/test_workflows.py", "tests/system/test_versions.py"),
    "src/oncehook/providers/catalog/": ("tests/providers", "tests/docs"),
    "src/oncehook/store/sql/": ("tests/store", "tests/docs"),
    "src/oncehook/web/": ("tests/web", "tests/browser"),
}
"""Beginning of a path that is not a module → its tests."""

DATABASES = ("oncehook.store.postgres.", "oncehook.store.sqlite.")
"""Packages with the variants of a part of the store. `tests/store` tests the part on every database."""


def changed_files(base: str) -> list[str]:
    """Paths that differ from the commit where this branch left `base`, and files that git does not know yet."""
    fork = _git("merge-base", "HEAD", base).strip()
    return sorted({*_git("diff", "--name-only", fork).split(), *_git("ls-files", "-o", "--exclude-standard").split()})


def select_tests(paths: Iterable[str]) -> list[str]:
    """The test files and folders to run for changes of these paths; `tests` if anything may have changed."""
    selected: set[str] = set()
    for path in paths:
        if path.endswith(".md"):
            selected.update(["tests/docs", *_other_tests(path)])
        elif path.startswith(EVERYTHING):
            return ["tests"]
        elif path.startswith("tests/") and Path(path).name.startswith("test_"):
            selected.add(path)
        elif path.startswith("tests/"):
            selected.add(str(Path(path).parent))
        elif path.startswith("src/oncehook/") and path.endswith(".py"):
            selected.update([*EVERY_MODULE, *_tests_of_module(path)])
        else:
            selected.update(_other_tests(path))
    return sorted(path for path in selected if (ROOT / path).exists())


def mirror(module: str) -> Path:
    """The path of the test of a module: `src/oncehook/worker/settle.py` → `tests/worker/test_settle.py`."""
    path = Path(module).relative_to("src/oncehook")
    return Path("tests") / path.parent / f"test_{path.name}"


def _other_tests(path: str) -> list[str]:
    return [test for start, tests in OTHERS.items() if path.startswith(start) for test in tests]


def _tests_of_module(path: str) -> list[str]:
    name = ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")
    graph = grimp.build_graph("oncehook")
    importers = graph.find_modules_that_directly_import(name) if name in graph.modules else set()
    parts = [f"oncehook.store.{name.removeprefix(package)}" for package in DATABASES if name.startswith(package)]
    return [test for module in {name, *importers, *parts} for test in _existing_tests(module)]


def _existing_tests(name: str) -> list[str]:
    if name == "oncehook":
        return ["tests/system/test_public_api.py"]
    path = mirror(f"src/{name.replace('.', '/')}.py")
    folder = ROOT / path.parent
    return [str(file.relative_to(ROOT)) for file in folder.glob(f"{path.stem}*.py")] if folder.is_dir() else []


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(" ".join(select_tests(changed_files(sys.argv[1] if len(sys.argv) > 1 else "main"))))
