"""The versions that pyproject.toml allows are the ones that are tested."""

import re
from importlib import metadata

import pytest

from tests.support import ROOT
from tests.support.locks import pins
from tests.support.versions import bounds, dependencies, requirements

UPPER_BOUNDED = {"uvicorn", "asyncpg", "sqlalchemy", "django"}
FOR_LATER_PYTHONS = {"django"}  # the lock is for Python 3.11, which Django 6 does not support
BOUNDS = {name.partition("[")[0]: limits for name, *limits in map(bounds, dependencies())}


def parse(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


@pytest.mark.parametrize("name", BOUNDS)
def test_installed_version_is_allowed(name: str) -> None:
    lowest, above = BOUNDS[name]
    installed = parse(metadata.version(name))
    assert lowest is not None and installed >= parse(lowest)
    assert above is None or installed < parse(above)


def test_libraries_whose_internals_are_used_have_an_upper_bound() -> None:
    assert {name for name, (_, above) in BOUNDS.items() if above} == UPPER_BOUNDED


@pytest.mark.parametrize("name", sorted(UPPER_BOUNDED - FOR_LATER_PYTHONS))
def test_upper_bound_is_the_minor_version_after_the_pinned_one(name: str) -> None:
    """A newer pin raises the bound, and a bound is never above the version that `make test` runs."""
    major, minor, *_ = parse(pins("dev")[name])
    above = BOUNDS[name][1]
    assert above == f"{major}.{minor + 1}"
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert f"| `{name}` | `<{above}` |" in page


def test_lowest_pins_every_dependency_to_its_lower_bound() -> None:
    lines = requirements("lowest")
    assert [f"{name}=={lowest}" in lines for name, lowest, _ in map(bounds, dependencies())] == [True] * len(BOUNDS)
    assert not [line for line in requirements("newest") if line.partition("==")[0] in BOUNDS]


def test_requirement_without_a_lower_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no lower bound"):
        bounds("uvicorn<1")


def test_targets_name_test_files_that_exist_and_ci_runs_both() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    (files,) = re.findall(r"^VERSION_TESTS := (.+)$", makefile, re.MULTILINE)
    assert [file for file in files.split() if not (ROOT / file).exists()] == []
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert "target: test-lowest" in workflow and "target: test-newest" in workflow
