"""`oncehook secrets`: each secret with its fingerprint and its last use, never with its value."""

from pathlib import Path

import pytest

from tests.cli.conftest import Accept
from tests.support.command_line import Run
from tests.support.events import STRIPE_SECRET, stripe_body

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def test_a_secret_that_verified_a_delivery_is_in_use(run: Run, accept: Accept) -> None:
    accept(stripe_body("evt_1"), stripe_body("evt_2"))
    (row,) = run("secrets", "--json").lines
    assert (row["source"], row["secret"], row["verified"]) == ("stripe", 0, 2) and row["last_used_at"]
    head, line = run("secrets").out.splitlines()
    assert head.split() == ["source", "secret", "fingerprint", "verified", "last", "used", "advice"]
    assert line.split()[:4] == ["stripe", "secrets[0]", row["mark"], "2"] and line.rstrip().endswith("in use")


def test_an_unused_secret_was_never_used(run: Run, hooks: Path) -> None:
    assert "never" in run("secrets").out
    assert run("secrets", "--json").lines[0]["last_used_at"] is None


def test_no_output_contains_a_secret(run: Run, accept: Accept) -> None:
    accept(stripe_body("evt_1"))
    assert STRIPE_SECRET not in run("secrets").out + run("secrets", "--json").out


def test_exit_code_is_1_without_secrets(run: Run, hooks: Path, database: str) -> None:
    hooks.write_text(f'database = "{database}"\n')
    ran = run("secrets")
    assert (ran.code, ran.error) == (1, "no source has a secret\n")
