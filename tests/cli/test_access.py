"""`oncehook access`: the printed lines let a person or a program in, and hold only hashes."""

import io
import sys
import tomllib

import pytest

from oncehook.web.auth import Access, hash_token, is_password
from oncehook.web.settings import read_dashboard
from tests.support.command_line import Run


def enter(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{password}\n"))


def test_a_person_gets_a_hashed_password_and_a_role(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "correct horse battery")
    ran = run("access", "jane", "--role", "operator")
    table = tomllib.loads(ran.out)["dashboard"]
    assert ran.code == 0 and table["users"]["jane"]["role"] == "operator"
    assert "correct horse battery" not in ran.out + ran.error
    assert is_password("correct horse battery", read_dashboard(table).users["jane"].password)


def test_a_program_gets_a_token_that_is_shown_once(run: Run) -> None:
    ran = run("access", "ci", "--token", "--scope", "read", "--scope", "replay")
    row = tomllib.loads(ran.out)["dashboard"]["tokens"]["ci"]
    token = ran.error.splitlines()[-1]
    assert row == {"token": hash_token(token), "scopes": ["read", "replay"]} and token not in ran.out
    user = Access(read_dashboard(tomllib.loads(ran.out)["dashboard"]), b"key").check_token(token)
    assert user is not None and user.scopes == {"read", "replay"}


def test_a_token_may_only_read_by_default(run: Run) -> None:
    assert tomllib.loads(run("access", "ci", "--token").out)["dashboard"]["tokens"]["ci"]["scopes"] == ["read"]


def test_a_short_password_is_rejected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, "short")
    ran = run("access", "jane")
    assert (ran.code, ran.out) == (2, "") and "the password must have at least 12 characters" in ran.error


@pytest.mark.parametrize("name", ["jane doe", "x" * 64, "a.b", '"'])
def test_a_name_that_is_no_toml_key_is_rejected(run: Run, name: str) -> None:
    ran = run("access", name, "--token")
    assert ran.code == 2 and "NAME may contain only letters, digits, - and _" in ran.error


def test_scopes_without_a_token_are_rejected(run: Run) -> None:
    ran = run("access", "jane", "--scope", "read")
    assert ran.code == 2 and "--scope needs --token" in ran.error
