"""Pages that a reader follows from top to bottom, run in an empty folder exactly as printed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.documentation import PAGES
from tests.support.walkthrough import Block, Walkthrough, blocks_of

NAMES = ["docs/step-by-step.md", "docs/tutorial.md"]


@pytest.mark.timeout(400)  # some thirty processes start one after the other, which takes a minute on a busy machine
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_page_works_as_printed(name: str, tmp_path: Path) -> None:
    assert Walkthrough(tmp_path).follow(PAGES[name]) > 10


@pytest.mark.rest
def test_tutorial_works_from_pip_install_on(tmp_path: Path) -> None:
    """The commands that the suite skips, too: pip installs the package as a reader's pip does."""
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)]
    assert subprocess.run(build, capture_output=True).returncode == 0
    folder = tmp_path / "shop"
    folder.mkdir()
    reader = Walkthrough(folder, folder / ".venv" / "bin", install=True)
    reader.environment |= {"PIP_FIND_LINKS": str(wheels), "PIP_NO_INPUT": "1"}
    assert reader.follow(PAGES["docs/tutorial.md"]) > 30


def test_every_page_with_commands_and_output_is_followed() -> None:
    assert [name for name, page in PAGES.items() if blocks_of(page) and name not in NAMES] == []


def test_different_output_fails(tmp_path: Path) -> None:
    Walkthrough(tmp_path).follow("```console\n$ echo one; echo two\none\n…\n```\n")
    with pytest.raises(AssertionError, match="the page shows"):
        Walkthrough(tmp_path).follow("```console\n$ echo one\ntwo\n```\n")


def test_file_of_a_page_is_replaced_by_a_later_one(tmp_path: Path) -> None:
    files = [f'```python title="a.py"\nprint({number})\n```\n' for number in (1, 2)]
    page = "".join([*files, "```console\n$ python a.py\n2\n```\n"])
    assert blocks_of(page)[0] == Block("python", "a.py", "print(1)\n")
    assert Walkthrough(tmp_path).follow(page) == 1
