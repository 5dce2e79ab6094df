"""The configuration: the file, the environment, and the errors about wrong settings."""

from pathlib import Path

import pytest

from oncehook.config.configuration import load, read_source, read_table
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError


def write(folder: Path, text: str) -> Path:
    file = folder / "oncehook.toml"
    file.write_text(text)
    return file


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'max_body = "2MiB"\nconcurrency = 4\n')
    settings = load(file, {"ONCEHOOK_CONCURRENCY": "8"}).settings
    assert (settings.max_body, settings.concurrency) == (2 * 2**20, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_body = 0", "max_body is 0: expected more than 0"),
        ('receive_timeout = "0s"', "receive_timeout is '0s': expected more than 0"),
        ("claim_timeout = 0", "claim_timeout is 0: expected more than 0"),
        ("concurrency = 0", "concurrency is 0: expected more than 0"),
        ("lease = 0", "lease is 0: expected more than 0"),
        ("intake_limit = 0", "intake_limit is 0: expected more than 0"),
        ("intake_bytes = 0", "intake_bytes is 0: expected more than 0"),
        ("[sources.stripe]\nmax_body = 0", "sources.stripe.max_body is 0: expected more than 0"),
        ("concurency = 3", "concurency is not a setting: did you mean concurrency?"),
        ('lease = "soon"', "lease is 'soon': expected a duration"),
    ],
)
def test_wrong_setting_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(write(tmp_path, text), {})
    assert message in str(caught.value)


def test_wrong_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="ONCEHOOK_LEASE is '0': expected more than 0"):
        load(None, {"ONCEHOOK_LEASE": "0"})


def test_setting_that_resembles_no_other_is_an_error_that_lists_the_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"xyzzy is not a setting: the settings are .*database, app, max_body"):
        read_table(Settings, {"xyzzy": 1}, "")


def test_value_of_a_secret_setting_is_not_shown_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as error:
        read_source("stripe", {"secrets": "whsec_hidden"})
    assert "sources.stripe.secrets is not usable" in str(error.value) and "hidden" not in str(error.value)


@pytest.mark.parametrize("name", ["Stripe", "a/b", "", "x" * 64, "-a"])
def test_source_name_must_fit_into_a_url(name: str) -> None:
    with pytest.raises(ConfigurationError, match="the name is part of the URL"):
        read_source(name, {})


def test_list_in_the_environment_is_separated_by_commas() -> None:
    settings = load(None, {"ONCEHOOK_EFFECT_TARGETS": "http://a:1, http://b:2,"}).settings
    assert settings.effect_targets == ("http://a:1", "http://b:2")


def test_variable_that_is_not_a_setting_is_ignored() -> None:
    assert load(None, {"ONCEHOOK_UNKNOWN": "1"}).settings == Settings()


def test_missing_and_broken_files_are_errors_that_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist: `oncehook init` writes one"):
        load(tmp_path / "missing.toml", {})
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load(write(tmp_path, "database ="), {})
    with pytest.raises(ConfigurationError, match=r"sources must contain tables, such as \[sources\.stripe\]"):
        load(write(tmp_path, 'sources = "stripe"'), {})
