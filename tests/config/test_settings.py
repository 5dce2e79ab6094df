"""All settings: each has a parser that accepts its default, and a description for docs/settings.md."""

from dataclasses import MISSING, Field, fields
from typing import Any

import pytest

from oncehook.config.settings import Default, Settings, SourceSettings

ALL = [
    pytest.param(field, id=f"{cls.__name__}.{field.name}")
    for cls in (Settings, SourceSettings)
    for field in fields(cls)
]


@pytest.mark.parametrize("field", ALL)
def test_setting_has_a_default_a_parser_and_a_description(field: Field[Any]) -> None:
    assert field.default is not MISSING and callable(field.metadata["parse"])
    description = field.metadata["help"]
    assert description[0].isupper() or description[0] == "`"
    assert description.endswith(".") and "\n" not in description and "|" not in description


@pytest.mark.parametrize("field", ALL)
def test_parser_accepts_the_default(field: Field[Any]) -> None:
    if field.default is not None and field.name != "trusted_proxies":
        assert field.metadata["parse"](field.default) == field.default


def test_default_durations_are_recognized_after_parsing_defaults() -> None:
    settings = Settings()
    assert isinstance(settings.dedupe_window, Default) and isinstance(settings.payload_retention, Default)
    assert not isinstance(Settings(dedupe_window=86400.0).dedupe_window, Default)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().concurrency = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        SourceSettings().mode = "inline"  # type: ignore[misc]
