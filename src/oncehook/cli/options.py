"""Options and helpers that several commands share: configuration, store, times, JSON and console output."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from oncehook.cli.app import configured
from oncehook.config.configuration import Configuration
from oncehook.model.errors import ConfigurationError
from oncehook.model.rows import QueryRow
from oncehook.operations.selection import parse_when
from oncehook.store import dialect_of, make_store
from oncehook.store.opening import opened_shards
from oncehook.store.store import Store

T = TypeVar("T")

config_option = click.option(
    "--config", type=click.Path(dir_okay=False), help="Configuration file.  [default: oncehook.toml, if it exists]"
)


port_option = click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 picks a free one.",
)

handlers_option = click.option(
    "--concurrency", type=click.IntRange(1, 1000), help="Maximum number of concurrent handlers.  [default: 16]"
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@asynccontextmanager
async def opened_store(config: str | None) -> AsyncIterator[Store]:
    """Open the database of the app or of the configuration. Its schema must be up to date."""
    async with opened(configured(config)[0]) as store:
        yield store


@asynccontextmanager
async def opened(configuration: Configuration) -> AsyncIterator[Store]:
    """Open the database of a loaded configuration. Its schema must be up to date."""
    require_database(configuration)
    if configuration.shards:
        async with opened_shards(replace(configuration.settings, migrate="never"), configuration.shards) as federation:
            warn_of_missing(federation)
            yield federation
        return
    store = make_store(replace(configuration.settings, migrate="never"))
    await store.open()
    try:
        if await store.schema.pending():
            raise ConfigurationError("the database schema is out of date: run `oncehook migrate`")
        yield store
    finally:
        await store.close()


def warn_of_missing(store: Store) -> None:
    """Say on standard error which shards cannot be reached, so that the output does not look complete."""
    for name, detail in store.missing.items():
        click.echo(f"oncehook: shard {name} is left out: {detail}", err=True)


def require_database(configuration: Configuration) -> None:
    """Fail if the SQLite file does not exist: opening it would create an empty database at a mistyped path."""
    address = configuration.settings.database
    path = dialect_of(address).file(address)
    if path is not None and not path.exists():
        raise ConfigurationError(
            f"there is no database at {path}: create one with `oncehook serve`, or choose another one with "
            f"--config, ONCEHOOK_DATABASE or --app module:inbox"
        )


class TimeOption(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A time: an age (2h, 30m, 7d) or a date (2026-11-15, 2026-11-15T03:00:00Z)."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> datetime:
        try:
            return parse_when(value)
        except ValueError as error:
            self.fail(str(error), param, context)


class ParsedOption(click.ParamType):  # type: ignore[type-arg]  # as above
    """A value in the syntax of a setting, such as a duration or a rate."""

    def __init__(self, name: str, parse: Callable[[Any], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, context)


def print_json(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row, ensure_ascii=False, default=_as_json) + "\n")


def _as_json(value: Any) -> Any:
    return value.as_json() if isinstance(value, QueryRow) else str(value)


def printable(text: Any) -> str:
    """A sender's text made safe for a terminal: unprintable characters are escaped."""
    plain = "" if text is None else str(text)
    return plain if plain.isprintable() else plain.encode("unicode_escape").decode()


def console() -> Any:
    from rich.console import Console

    # Output to a file or a pipe is not truncated to a screen width.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def write_new(path: Path, content: str) -> bool:
    """Create a file that only its owner can read, because it may hold secrets. Returns False if it exists."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  # Path.open takes no descriptor
            file.write(content)
    except FileExistsError:
        return False
    return True
