"""What the shared verbs need to know about a database: facts, and how parameters are written in its SQL."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database's facts and notations."""

    name: str
    """The folder of its statements below `store/sql/`."""

    title: str
    """The database's own name, for messages."""

    placeholder: str
    """The first parameter in a handler's statement."""

    single_writer: bool
    """Whether only one transaction can write at a time, so that more processes process nothing faster."""

    earliest: str
    """A text that sorts before every time."""

    array: Callable[[Iterable[Any]], str]
    """Numbers or dates as one parameter."""

    texts: Callable[[Iterable[str]], Any]
    """Texts as one parameter."""

    time: Callable[[datetime | None], Any]
    """A time as a parameter."""

    json: Callable[[Any], str]
    """A value as JSON that the database can hold."""

    file: Callable[[str], Path | None]
    """The file that an address names. None: a server has the database."""

    replay: tuple[str, ...]
    """The statements that replay receipts; the last one returns those that moved."""

    pattern: Callable[[str], str]
    """A type pattern in the notation of the database's own matching operator."""
