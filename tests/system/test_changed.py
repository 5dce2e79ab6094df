"""`make test-changed`: which tests run for which change."""

import pytest

from tests.support.changed import select_tests


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/oncehook/worker/process.py", "tests/worker/test_process.py"),
        ("src/oncehook/store/sql/postgres/leases.sql", "tests/store"),
        ("src/oncehook/providers/catalog/stripe.toml", "tests/providers"),
        ("src/oncehook/web/templates/base.html", "tests/web"),
        ("docs/email.md", "tests/docs"),
        ("tests/model/test_retry.py", "tests/model/test_retry.py"),
        ("tests/browser/conftest.py", "tests/browser"),
        ("examples/shop/hooks.py", "examples"),
    ],
)
def test_tests_follow_from_a_changed_path(changed: str, expected: str) -> None:
    assert expected in select_tests([changed])


def test_tests_of_direct_importers_run_too() -> None:
    assert "tests/worker/test_process.py" in select_tests(["src/oncehook/worker/settle.py"])


@pytest.mark.parametrize("changed", ["tests/support/waiting.py", "tests/conftest.py", "pyproject.toml"])
def test_change_of_a_shared_helper_runs_all_tests(changed: str) -> None:
    assert select_tests([changed]) == ["tests"]


def test_change_without_tests_selects_none() -> None:
    assert select_tests(["LICENSE"]) == []
