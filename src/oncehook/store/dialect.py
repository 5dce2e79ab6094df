"""A database's properties, and how parameters are written in its SQL. The shared store classes use them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database's properties and notations."""

    name: str
    """The folder of its SQL below `store/sql/`."""

    title: str
    """The database's name in messages."""

    placeholder: str
    """How the first parameter is written in a handler's statement."""

    single_writer: bool
    """Whether only one transaction can write at a time. More worker processes are then no faster."""

    earliest: str
    """A text that sorts before every time."""

    array: Callable[[Iterable[Any]], str]
    """Encodes numbers or dates as one parameter."""

    texts: Callable[[Iterable[str]], Any]
    """Encodes texts as one parameter."""

    time: Callable[[datetime | None], Any]
    """Encodes a time as a parameter."""

    json: Callable[[Any], str]
    """Encodes a value as JSON that the database can store."""

    file: Callable[[str], Path | None]
    """Returns the database file of a URL, or None if the database is on a server."""

    replay: tuple[str, ...]
    """The names of the statements that replay receipts. The last one returns the replayed receipts."""

    pattern: Callable[[str], str]
    """Converts a type pattern to the syntax of the database's matching operator."""
