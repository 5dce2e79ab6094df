"""`oncehook pause`: stop handling the events of a source or a consumer. The code is shared with `oncehook resume`."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import ParsedOption, config_option, json_option, opened, print_json, printable, run
from oncehook.model.rows import Pause
from oncehook.model.values import positive_duration
from oncehook.operations.pause import pause

consumer_option = click.option("--consumer", metavar="NAME", help="The consumer, in place of a source.")


@click.command("pause")
@click.argument("source", required=False)
@consumer_option
@click.option(
    "--for",
    "seconds",
    type=ParsedOption("duration", positive_duration),
    metavar="2h",
    help="Resume automatically after this time.",
)
@click.option("--reason", help="Reason; shown by `oncehook stats` and on the dashboard.")
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@config_option
@app_option
@json_option
def command(
    source: str | None,
    consumer: str | None,
    seconds: float | None,
    reason: str | None,
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Pause a source or a consumer: its events are accepted but not handled, in every process, until you resume it.
    Exits 1 if it is already paused.

    The pause survives restarts. Running handlers finish; workers release receipts that they have not started. A source
    with mode = "inline" answers 503 with Retry-After. Effects that are already recorded still run. Other consumers
    continue while one is paused.

    \b
    oncehook pause stripe
    oncehook pause stripe --for 2h --reason "database migration"
    oncehook pause --consumer analytics
    oncehook resume stripe
    """
    act = partial(pause, actor=actor, reason=reason, seconds=seconds)
    change(source or "", consumer or "", config, act, as_json=as_json, paused=True)


def change(
    source: str,
    consumer: str,
    config: str | None,
    act: Callable[..., Awaitable[bool]],
    *,
    as_json: bool,
    paused: bool,
) -> None:
    """Pause or resume a source or a consumer, and print the result."""
    if bool(source) == bool(consumer):
        raise click.UsageError("pass either a source or --consumer NAME")
    configuration, inbox = configured(config)
    consumers = configuration.consumers if inbox is None else inbox._runtime.consumers.names
    known = consumers if consumer else configuration.sources

    async def work() -> tuple[bool, Pause | None]:
        async with opened(configuration) as store:
            changed = await act(store, source, consumer=consumer, known=known)
            active = await store.pauses.active()
            return changed, next((row for row in active if (row.source, row.consumer) == (source, consumer)), None)

    (changed, row), verb = run(work()), "paused" if paused else "resumed"
    name = printable(source or consumer)
    if as_json:
        named = {"consumer": consumer} if consumer else {"source": source}
        print_json({**named, "paused": paused, "changed": changed, "ends_at": row.ends_at if row else None})
    elif changed:
        click.echo(f"{name} is {verb}{pause_text(row.ends_at, row.reason) if row else ''}")
    else:
        click.echo(f"{name} {'is already paused' if paused else 'is not paused'}", err=True)
    sys.exit(0 if changed else 1)


def pause_text(ends_at: str | None, reason: str | None) -> str:
    """The end and the reason of a pause: ` until 2026-11-16T15:00:00Z (database migration)`."""
    until = f" until {ends_at[:19]}Z" if ends_at else ""
    return until + (f" ({printable(reason)})" if reason else "")
