"""`make test-changed`, and the map in CONTRIBUTING.md: which tests run for which change."""

import re

import pytest

from tests.support import ROOT
from tests.support.changed import select_tests


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/oncehook/worker/process.py", "tests/worker/test_process.py"),
        ("src/oncehook/store/sql/postgres/leases.sql", "tests/store"),
        ("src/oncehook/providers/catalog/stripe.toml", "tests/providers"),
        ("src/oncehook/web/templates/base.html", "tests/web"),
        ("src/oncehook/providers/catalog/stripe.toml", "tests/docs"),
        ("src/oncehook/web/static/live.js", "tests/browser"),
        ("src/oncehook/store/postgres/claims.py", "tests/store/postgres/test_claims.py"),
        ("src/oncehook/store/postgres/claims.py", "tests/store/test_claims_duplicates.py"),
        ("src/oncehook/store/sqlite/leases.py", "tests/store/test_leases.py"),
        ("src/oncehook/cli/prune.py", "tests/docs/test_pages.py"),
        ("src/oncehook/operations/prune.py", "tests/operations/test_prune.py"),
        ("src/oncehook/worker/process.py", "tests/system/test_test_tree.py"),
        ("docs/email.md", "tests/docs"),
        ("ADDING_PROVIDERS.md", "tests/docs"),
        ("tests/support/README.md", "tests/docs"),
        ("deploy/prometheus/alerts.yaml", "tests/system/test_prometheus.py"),
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


def test_every_path_in_the_map_of_contributors_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = page[page.index("| I changed | run |") :].partition("\n\n")[0]
    named = re.findall(r"tests/[\w/.]+(?![\w/.<])", table)
    assert "tests/faults/test_worker_kill.py" in named
    assert [path for path in named if not (ROOT / path).exists()] == []
