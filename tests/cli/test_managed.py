"""Settings and secrets on the command line of `oncehook sources` and `oncehook tenants`."""

import click
import pytest

from oncehook.cli.managed import new_secret, parse_settings, read_secrets


def test_setting_is_toml_or_a_text() -> None:
    pairs = ("a=1", "b=true", 'c=["x", "y"]', "d=10s", 'e="10s"', "f={ attempts = 3 }", "g=a=b", "h=")
    assert parse_settings(pairs) == {
        "a": 1,
        "b": True,
        "c": ["x", "y"],
        "d": "10s",
        "e": "10s",
        "f": {"attempts": 3},
        "g": "a=b",
        "h": "",
    }


@pytest.mark.parametrize("pair", ["types", "=x", "secrets=x", "provider=stripe"])
def test_pair_that_is_not_a_setting_is_a_usage_error(pair: str) -> None:
    with pytest.raises(click.UsageError, match="--set"):
        parse_settings((pair,))


def test_line_break_in_a_value_starts_no_second_setting() -> None:
    assert parse_settings(("a=1\nb = 2",)) == {"a": "1\nb = 2"}


def test_rotation_takes_one_secret_or_finish() -> None:
    assert new_secret(("x",), False, finish=False, grace=None) == "x"
    assert new_secret((), False, finish=True, grace=None) is None
    for secrets, finish, grace in (((), False, None), (("x", "y"), False, None), (("x",), True, None), ((), True, 1.0)):
        with pytest.raises(click.UsageError):
            new_secret(secrets, False, finish=finish, grace=grace)


def test_secret_is_a_value_or_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "from the environment")
    assert read_secrets(("literal", "env:SOME_SECRET"), False) == ["literal", "from the environment"]
