"""The lock files are in step with their sources, and pip can check every file that they name."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import ROOT
from tests.support.locks import FOLDER, pins, sources

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
LOCKS = {
    "run": [],
    "image": ["postgres", "otel"],
    "dev": list(EXTRAS),
}
"""Lock of the package → the extras that it includes."""

FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_hashes_and_no_address(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text("utf-8")
    assert "://" not in text and not re.search(r"--index|--extra|--find-links|^-i ", text, re.MULTILINE)
    entries = re.findall(r"^\w[^\n]*(?:\n    --hash[^\n]*)*", text, re.MULTILINE)
    assert len(entries) == len(pins(name))
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}$", entry)] == []


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.in")))
def test_lock_pins_every_source(name: str) -> None:
    """If this fails, run `make lock`."""
    assert sorted(sources(name) - pins(name).keys()) == [], "run `make lock`"


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_the_dependencies_of_the_package_within_their_bounds(name: str) -> None:
    extras = [text for extra in LOCKS[name] for text in EXTRAS[extra]]
    pinned = pins(name)
    for requirement in map(Requirement, (*PROJECT["project"]["dependencies"], *extras)):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement.name


def test_locks_that_are_installed_together_agree() -> None:
    dev = pins("dev")
    for name in ("run", "image", "build"):
        different = {package: pin for package, pin in pins(name).items() if dev.get(package, pin) != pin}
        assert different == {}, name


def test_build_lock_has_what_the_build_system_requires() -> None:
    required = {canonicalize_name(Requirement(text).name) for text in PROJECT["build-system"]["requires"]}
    assert required <= pins("build").keys()
