"""Decision records are numbered, short, listed, and name tests that exist."""

import re
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.documentation import PAGES, missing_tests

RECORDS = {name: text for name, text in PAGES.items() if name.startswith("docs/decisions/")}
MAX_LINES = 50


def test_decision_records_are_numbered_without_a_gap() -> None:
    numbers = [int(Path(name).name.partition("-")[0]) for name in RECORDS]
    assert numbers and numbers == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("name", RECORDS)
def test_decision_record_has_four_parts_on_one_screen(name: str) -> None:
    text = RECORDS[name]
    assert text.startswith(f"# {Path(name).name.partition('-')[0]} "), "the title begins with the number"
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Evidence", "Consequences"]
    assert all(part.strip() for part in re.split(r"^#.*$", text, flags=re.MULTILINE)[1:]), "a part is empty"
    assert len(text.splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", RECORDS)
def test_decision_record_is_listed_in_the_architecture_page(name: str) -> None:
    assert f"](decisions/{Path(name).name})" in PAGES["docs/architecture.md"]


@pytest.mark.parametrize("name", RECORDS)
def test_decision_record_names_tests_that_exist(name: str) -> None:
    files = re.findall(r"`(tests/[\w/]+\.py)`", RECORDS[name])
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert missing_tests(RECORDS[name]) == []
