"""docs/dependencies.md has a reason for every package, and requirements name no package index."""

import re
import tomllib
from importlib import metadata

from tests.support import ROOT
from tests.support.documentation import PAGES


def package_name(requirement: str) -> str:
    """Return the normalized name of the package that a requirement names."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-").replace(".", "-")


def installed_requirements(package: str) -> list[str]:
    """Return the requirements of an installed package. A package that is not installed here has none."""
    try:
        return [text for text in metadata.requires(package) or () if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        return []


def test_every_direct_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(text for extra in extras for text in extra)]
    lines = (ROOT / "requirements/dev.txt").read_text().splitlines()
    pinned = {package_name(line) for line in lines if line.strip()}
    indirect = {package_name(text) for package in pinned for text in installed_requirements(package)}
    direct = {package_name(text) for text in declared} | (pinned - indirect)
    documented = {package_name(name) for name in re.findall(r"`([\w-]+)`", PAGES["docs/dependencies.md"])}
    assert sorted(direct - documented) == [], "these packages have no row in docs/dependencies.md"


def test_requirements_name_no_package_index() -> None:
    for file in (ROOT / "requirements").iterdir():
        assert not re.search(r"://|--index|--extra|-i ", file.read_text()), file.name
