"""`oncehook pause` and `oncehook resume`: let a source's events wait, and have them worked off again."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import Parsed, config_option, json_option, opened, print_json, printable, run
from oncehook.model.rows import Pause
from oncehook.model.values import positive_duration
from oncehook.operations.pause import pause


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

    change(source, config, as_json, partial(pause, actor=actor, reason=reason, seconds=seconds), paused=True)


Change = Callable[..., Awaitable[bool]]


def change(
    source: str, config: str | None, as_json: bool, act: Callable[..., Awaitable[bool]], *, paused: bool
) -> None:
    """Pause or resume, and say so."""
    configuration, _ = configured(config)

    async def work() -> tuple[bool, Pause | None]:
        async with opened(configuration) as store:
            changed = await act(store, source, known=configuration.sources)
            return changed, next((row for row in await store.pauses.active() if row.source == source), None)

    (changed, row), word = run(work()), "paused" if paused else "resumed"
    if as_json:
        until = row.ends_at if row else None
        print_json({"source": source, "paused": paused, "changed": changed, "ends_at": until})
    elif changed:
        click.echo(f"{printable(source)} is {word}{pause_text(row.ends_at, row.reason) if row else ''}")
    else:
        click.echo(f"{printable(source)} {'was paused before' if paused else 'was not paused'}", err=True)
    sys.exit(0 if changed else 1)


def pause_text(ends_at: str | None, reason: str | None) -> str:
    """` until 2026-11-16T15:00:00Z (the warehouse is migrated)`: what is known of it."""
    until = f" until {ends_at[:19]}Z" if ends_at else ""
    return until + (f" ({printable(reason)})" if reason else "")
