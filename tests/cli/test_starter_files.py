"""The starter files: valid TOML and Python for every provider."""

import tomllib

import pytest

from oncehook.cli.starter_files import example_type, files, source_lines, variable
from oncehook.providers import definition as providers

NAMES = providers.built_in_names()


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_every_provider_are_valid(name: str) -> None:
    provider = providers.built_in(name)
    written = files(provider, source_lines(provider, {variable(provider)}))
    assert list(written) == ["oncehook.toml", "hooks.py", "test_hooks.py"]
    assert name in tomllib.loads(written["oncehook.toml"])["sources"]
    for file in ("hooks.py", "test_hooks.py"):
        compile(written[file], file, "exec")


def test_without_a_provider_there_is_no_source_and_no_test() -> None:
    written = files(None, "")
    assert list(written) == ["oncehook.toml", "hooks.py"]
    assert "sources" not in tomllib.loads(written["oncehook.toml"])
    compile(written["hooks.py"], "hooks.py", "exec")


def test_the_variable_of_a_secret_has_only_capitals_digits_and_underscores() -> None:
    provider = providers.built_in("standard-webhooks")
    assert variable(provider) == "STANDARD_WEBHOOKS_WEBHOOK_SECRET"
    assert variable(provider, "VERIFY_TOKEN") == "STANDARD_WEBHOOKS_VERIFY_TOKEN"


def test_required_options_of_a_provider_are_in_its_source() -> None:
    provider = providers.built_in("meta")
    source = tomllib.loads(source_lines(provider, {variable(provider)}))["sources"]["meta"]
    assert source["verify_token"] == "env:META_VERIFY_TOKEN"


def test_the_example_type_of_stripe_is_a_paid_invoice() -> None:
    assert example_type(providers.built_in("stripe")) == "invoice.paid"
