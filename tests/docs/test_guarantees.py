"""docs/guarantees.md lists every guarantee, with tests that exist."""

import re

import pytest

from tests.support.documentation import PAGES, TEST_REFERENCE, missing_tests

PAGE = PAGES["docs/guarantees.md"]
SECTIONS = dict(re.findall(r"^### (R\d+)\b.*?\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
ALL = [f"R{number}" for number in range(1, 37)]


def test_every_guarantee_has_one_section_in_the_order_of_numbers() -> None:
    sections = re.findall(r"^### (R\d+)\b", PAGE, re.MULTILINE)
    assert sections == ALL


@pytest.mark.parametrize("name", SECTIONS)
def test_guarantee_names_tests_that_exist(name: str) -> None:
    assert TEST_REFERENCE.findall(SECTIONS[name]), f"{name} names no test"
    assert missing_tests(SECTIONS[name]) == [], f"{name} names tests that do not exist"
