"""What may be written in the file and the environment, and what is said of a mistake."""

from pathlib import Path

import pytest

from oncehook.config.configuration import load
from oncehook.model.errors import ConfigurationError


def write(folder: Path, text: str) -> Path:
    file = folder / "oncehook.toml"
    file.write_text(text)
    return file


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'max_body = "2MiB"\nconcurrency = 4\n')
    settings = load(file, {"ONCEHOOK_CONCURRENCY": "8"}).settings
    assert (settings.max_body, settings.concurrency) == (2 * 2**20, 8)


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_a_mistake_is_told_by_its_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(write(tmp_path, text), {})
    assert said in str(caught.value)


def test_a_mistake_in_the_environment_is_told_by_the_variable() -> None:
    with pytest.raises(ConfigurationError, match="ONCEHOOK_LEASE is '0': expected more than 0"):
        load(None, {"ONCEHOOK_LEASE": "0"})
