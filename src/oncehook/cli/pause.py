"""`oncehook pause` and `oncehook resume`: let a source's events wait, and have them worked off again."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import Parsed, config_option, json_option, opened, print_json, printable, run
from oncehook.config.settings import Configuration
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import positive_duration
from oncehook.operations.replay import whoami
from oncehook.store.protocols import Store


@click.command("pause")
@click.argument("source")
@click.option(
    "--for", "seconds", type=Parsed("duration", positive_duration), metavar="2h", help="Resume it by itself after this."
)
@click.option("--reason", help="Why: shown by `stats` and on the dashboard.")
@click.option("--actor", help="Who is recorded as having done it.  [default: user@host]")
@config_option
@app_option
@json_option
def command(
    source: str, seconds: float | None, reason: str | None, actor: str | None, config: str | None, as_json: bool
) -> None:
    """Pause a source: its events are accepted and wait, in every process and after a restart, until it is resumed.

    What runs ends; what a worker holds and has not started goes back. An inline source answers 503 with Retry-After.
    Effects that are recorded already are performed. Exits 1 if it was paused before.

    \b
    oncehook pause stripe
    oncehook pause stripe --for 2h --reason "the warehouse is migrated"
    oncehook resume stripe
    """

    async def pause(store: Store, actor: str) -> bool:
        return await store.pause(source, actor, reason=reason, seconds=seconds)

    change(source, actor, config, as_json, pause, paused=True)


Change = Callable[[Store, str], Awaitable[bool]]


def change(source: str, actor: str | None, config: str | None, as_json: bool, act: Change, *, paused: bool) -> None:
    """Pause or resume, and say so."""
    configuration, _ = configured(config)

    async def work() -> tuple[bool, dict[str, Any] | None]:
        async with opened(configuration) as store:
            await _check(source, configuration, store)
            changed = await act(store, actor or whoami())
            await store.notify()
            return changed, next((row for row in await store.pauses() if row["source"] == source), None)

    (changed, pause), word = run(work()), "paused" if paused else "resumed"
    if as_json:
        until = pause["ends_at"] if pause else None
        print_json({"source": source, "paused": paused, "changed": changed, "ends_at": until})
    elif changed:
        click.echo(f"{printable(source)} is {word}{pause_text(pause) if pause else ''}")
    else:
        click.echo(f"{printable(source)} {'was paused before' if paused else 'was not paused'}", err=True)
    sys.exit(0 if changed else 1)


def pause_text(pause: dict[str, Any]) -> str:
    """` until 2026-11-16T15:00:00Z (the warehouse is migrated)`: what is known of it."""
    until = f" until {pause['ends_at'][:19]}Z" if pause["ends_at"] else ""
    return until + (f" ({printable(pause['reason'])})" if pause["reason"] else "")


async def _check(source: str, configuration: Configuration, store: Store) -> None:
    """A mistyped name would be a pause of nothing."""
    known = {*configuration.sources, *await store.receipts.sources()}
    known |= {row["source"] for row in await store.pauses()}
    if source not in known:
        told = f"there is no source {printable(source)}; known are {', '.join(sorted(known)) or 'none'}"
        raise ConfigurationError(f"{told}. One that is added in code and has no events yet needs --app module:inbox")
