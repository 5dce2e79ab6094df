"""The keyword arguments of `Inbox` and `inbox.source` are the settings that code may set."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from oncehook.config.consumer_settings import ConsumerSettings
from oncehook.config.options import ConsumerOptions, InboxOptions, RetryOptions, SourceOptions
from oncehook.config.settings import Settings, SourceSettings
from oncehook.model.retry import Retry


@pytest.mark.parametrize(
    ("options", "settings", "arguments"),
    [
        (InboxOptions, Settings, {"database", "effect_targets"}),
        (SourceOptions, SourceSettings, {"secrets"}),
        (ConsumerOptions, ConsumerSettings, set()),
        (RetryOptions, Retry, set()),
    ],
)
def test_keys_of_the_options_are_the_settings_without_the_arguments(
    options: Any, settings: Any, arguments: set[str]
) -> None:
    assert set(options.__annotations__) == {field.name for field in fields(settings)} - arguments
    assert options.__total__ is False, "every key must be optional"


@pytest.mark.parametrize(("options", "settings"), [(InboxOptions, Settings), (SourceOptions, SourceSettings)])
def test_literal_types_of_the_options_are_the_values_that_the_parser_accepts(options: Any, settings: Any) -> None:
    parsers = {field.name: field.metadata["parse"] for field in fields(settings)}
    literals = {name: get_args(hint) for name, hint in get_type_hints(options).items() if get_origin(hint) is Literal}
    assert len(literals) >= 3
    for name, allowed in literals.items():
        assert [parsers[name](value) for value in allowed] == list(allowed)
        with pytest.raises(ValueError, match=f"expected one of {', '.join(allowed)}"):
            parsers[name]("something else")
