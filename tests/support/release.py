"""Checks whether a tag may be published: `python -m tests.support.release v0.1.0`."""

import re
import sys

from docs.migrations import RELEASED, recorded
from oncehook import __version__
from tests.support import ROOT

NOT_RELEASED = "is not released yet"
"""The words of the README that are true only before the first release."""


def problems(tag: str, *, version: str, changelog: str, readme: str, released: dict[str, int], last: int) -> list[str]:
    """What must be done before this tag is published."""
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and src/oncehook/__init__.py has the version {version}")
    heading = next(iter(re.findall(r"^## (.+)$", changelog, re.MULTILINE)), "")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        found.append(f"the first heading of CHANGELOG.md is {heading!r}, and not '{version} (date)'")
    if NOT_RELEASED in readme:
        found.append(f"README.md says that a version {NOT_RELEASED}")
    if released.get(version) != last:
        found.append(f"RELEASED in docs/migrations.py does not seal the migrations up to {last} for {version}")
    return found


def last_migration() -> int:
    return max(int(path.rpartition("/")[2].partition("_")[0]) for path in recorded())


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.release TAG")
    changelog, readme = ((ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "README.md"))
    found = problems(
        sys.argv[1],
        version=__version__,
        changelog=changelog,
        readme=readme,
        released=RELEASED,
        last=last_migration(),
    )
    if found:
        sys.exit("This cannot be released yet:\n" + "\n".join(f"- {problem}" for problem in found))
    print(f"{sys.argv[1]} can be released")


if __name__ == "__main__":
    main()
