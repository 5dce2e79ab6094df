"""docs/architecture.md draws the packages that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "oncehook"


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
