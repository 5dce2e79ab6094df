"""Declares one setting: a field with its default, its parser and its description."""

from dataclasses import field
from typing import Any

from oncehook.model.values import Parse


def setting(default: Any, parse: Parse, help: str) -> Any:
    """A field of a settings class. The documentation shows `help`."""
    return field(default=default, metadata={"parse": parse, "help": help})
