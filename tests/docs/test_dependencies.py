"""docs/dependencies.md has a reason for every package."""

import re
import tomllib

from packaging.requirements import Requirement

from tests.support import ROOT
from tests.support.documentation import PAGES
from tests.support.locks import FOLDER, normalize, sources


def test_every_direct_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(text for extra in extras for text in extra)]
    direct = {normalize(Requirement(text).name) for text in declared}
    for file in FOLDER.glob("*.in"):
        direct |= sources(file.stem)
    documented = {normalize(name) for name in re.findall(r"`([\w-]+)`", PAGES["docs/dependencies.md"])}
    assert sorted(direct - documented) == [], "these packages have no row in docs/dependencies.md"
