"""docs/security-tests.md lists every known attack, with tests that exist."""

import re

import pytest

from tests.support.documentation import PAGES, TEST_REFERENCE, missing_tests

PAGE = PAGES["docs/security-tests.md"]
SECTIONS = dict(re.findall(r"^### ([SH]\d+)\b.*?\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))


def test_every_attack_has_one_section_in_the_order_of_numbers() -> None:
    expected = [f"S{number}" for number in range(1, 24)] + [f"H{number}" for number in range(1, 14)]
    assert re.findall(r"^### ([SH]\d+)\b", PAGE, re.MULTILINE) == expected


@pytest.mark.parametrize("name", SECTIONS)
def test_attack_names_tests_that_exist(name: str) -> None:
    assert TEST_REFERENCE.findall(SECTIONS[name]), f"{name} names no test"
    assert missing_tests(SECTIONS[name]) == [], f"{name} names tests that do not exist"
