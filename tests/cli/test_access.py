"""`oncehook access`: the configuration of a dashboard user or of an API token."""

import subprocess
import tomllib

import pytest

from oncehook.web.auth import Access, is_password
from oncehook.web.settings import read_dashboard
from tests.support.serve import ONCEHOOK

PASSWORD = "correct horse battery"


def run_access(*arguments: str, password: str = "") -> "subprocess.CompletedProcess[str]":
    command = [str(ONCEHOOK), "access", *arguments]
    return subprocess.run(command, input=password, capture_output=True, text=True, timeout=20)


def test_user_can_sign_in_with_the_printed_table() -> None:
    result = run_access("jane", "--role", "operator", password=PASSWORD + "\n")
    settings = read_dashboard(tomllib.loads(result.stdout)["dashboard"])
    assert is_password(PASSWORD, settings.users["jane"].password) and settings.users["jane"].role == "operator"
    assert PASSWORD not in result.stdout


def test_token_is_printed_once_and_the_table_has_only_its_hash() -> None:
    result = run_access("ci", "--token", "--scope", "read", "--scope", "replay")
    token = result.stderr.splitlines()[-1]
    settings = read_dashboard(tomllib.loads(result.stdout)["dashboard"])
    principal = Access(settings, b"key").check_token(token)
    assert principal is not None and principal.scopes == {"read", "replay"} and token not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "password"),
    [
        (["jane"], "short\n"),
        (["a b"], PASSWORD),
        (["jane", "--scope", "read"], PASSWORD),
        (["x", "--role", "root"], ""),
    ],
    ids=["short password", "invalid name", "scope of a user", "unknown role"],
)
def test_invalid_arguments_are_a_usage_error(arguments: list[str], password: str) -> None:
    result = run_access(*arguments, password=password)
    assert result.returncode == 2 and result.stdout == ""
