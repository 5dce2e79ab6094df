"""The check before a release: a tag is published only if everything names its version."""

import re
from typing import Any

import pytest

from oncehook import __version__
from tests.support import ROOT
from tests.support.release import NOT_RELEASED, last_migration, problems

READY: dict[str, Any] = {
    "version": "0.2.0",
    "changelog": "# Changelog\n\n## 0.2.0 (2027-01-31)\n\n## 0.1.0 (2026-12-01)\n",
    "readme": "# Oncehook\n",
    "released": {"0.1.0": 1, "0.2.0": 3},
    "last": 3,
}


def test_tag_of_a_prepared_release_has_no_problem() -> None:
    assert problems("v0.2.0", **READY) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": "0.3.0"}, "the tag is v0.2.0"),
        ({"changelog": "## 0.2.0 (unreleased)\n"}, "the first heading of CHANGELOG.md is '0.2.0 (unreleased)'"),
        ({"changelog": ""}, "the first heading of CHANGELOG.md is ''"),
        ({"readme": "Version 0.2.0 is not released yet."}, "README.md says"),
        ({"released": {"0.1.0": 1}}, "RELEASED in docs/migrations.py"),
        ({"last": 4}, "does not seal the migrations up to 4"),
    ],
)
def test_each_unfinished_step_is_named(change: dict[str, Any], expected: str) -> None:
    assert expected in problems("v0.2.0", **{**READY, **change})[0]


def test_changelog_begins_with_the_version_of_the_package() -> None:
    """Every heading is a version with its date; only the newest may be unreleased."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", headings[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in headings[1:])
    readme = (ROOT / "README.md").read_text("utf-8")
    assert (NOT_RELEASED in readme) == (headings == [f"{__version__} (unreleased)"])


def test_last_migration_is_known() -> None:
    assert last_migration() >= 1
