"""The settings of a consumer in the file: every key, the defaults, and wrong values."""

from pathlib import Path

import pytest

from oncehook import ConfigurationError
from oncehook.config.configuration import load
from oncehook.config.consumer_settings import ConsumerSettings

ALL = """
[sources.stripe]
secrets = ["whsec_test"]

[consumers.analytics]
sources = ["stripe"]
types = ["invoice.*"]
where = { livemode = true }
forward = "https://analytics.example/hooks"
forward_timeout = "5s"
rate = "100/m"
concurrency = 4
retry = { attempts = 5, first = "10s" }
paused = true
"""


def read(folder: Path, text: str) -> ConsumerSettings:
    file = folder / "oncehook.toml"
    file.write_text(text)
    return load(file, {}).consumers["analytics"]


def test_every_key_is_read_from_the_file(tmp_path: Path) -> None:
    settings = read(tmp_path, ALL)
    assert (settings.sources, settings.types, settings.where) == (("stripe",), ("invoice.*",), {"livemode": True})
    assert (settings.forward, settings.forward_timeout) == ("https://analytics.example/hooks", 5.0)
    assert (settings.rate, settings.concurrency, settings.paused) == (100 / 60, 4, True)
    assert settings.retry == {"attempts": 5, "first": 10.0}


def test_consumer_needs_no_key(tmp_path: Path) -> None:
    assert read(tmp_path, "[consumers.analytics]\n") == ConsumerSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[consumers.analytics]\nrate = "50"\n', r"consumers\.analytics\.rate is '50': expected a rate such as 50/s"),
        ("[consumers.analytics]\nrates = 5\n", r"did you mean consumers\.analytics\.rate\?"),
        ("[consumers.analytics]\nconcurrency = -1\n", r"consumers\.analytics\.concurrency is -1"),
        ("[consumers.Analytics]\n", "not a name of a consumer"),
        ("[consumers.-]\n", "not a name of a consumer; use .*, and begin with a letter or digit"),
        ("[consumers.main]\n", "main is the consumer of handlers without a consumer's name"),
        ("consumers = 5\n", r"consumers must contain tables"),
    ],
)
def test_wrong_value_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, text)
