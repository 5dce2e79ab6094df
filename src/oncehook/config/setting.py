"""Declares one setting: a field with its default, its parser and its description."""

from dataclasses import field
from typing import Any

from oncehook.model.values import Parse


def setting(default: Any, parse: Parse, help: str) -> Any:
    """A field of a settings class. The documentation shows `help`. `repr` never shows the value: some are secrets."""
    return field(default=default, repr=False, metadata={"parse": parse, "help": help})
