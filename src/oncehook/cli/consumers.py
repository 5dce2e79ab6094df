"""`oncehook consumers`: list the consumers, or remove one."""

import sys

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import config_option, json_option, opened_store, print_json, printable, run
from oncehook.cli.pause import pause_text
from oncehook.cli.progress import status_line
from oncehook.cli.tables import Column, print_table
from oncehook.operations.consumers import (
    MAX_COUNTED,
    ConsumerSummary,
    check_consumer,
    check_removable,
    read_consumers,
    remove_consumer,
)
from oncehook.operations.replay import whoami
from oncehook.store.store import Store


@click.group("consumers", invoke_without_command=True)
@config_option
@app_option
@json_option
@click.pass_context
def command(context: click.Context, config: str | None, as_json: bool) -> None:
    """List the consumers: their sources, live processes and waiting events.

    \b
    oncehook consumers
    oncehook consumers --json
    oncehook consumers remove analytics
    """
    if context.invoked_subcommand is None:
        states = run(_read(config))
        if as_json:
            for state in states:
                print_json(state.as_json())
        else:
            print_table(COLUMNS, [_cells(state) for state in states])


async def _read(config: str | None) -> list[ConsumerSummary]:
    async with opened_store(config) as store:
        return await read_consumers(store)


COLUMNS = (
    Column("consumer"),
    Column("sources", truncates=True),
    Column("types", truncates=True),
    Column("processes", right=True),
    Column("waiting", right=True),
    Column("failed", right=True),
    Column("rate", right=True),
    Column("paused", truncates=True),
    Column("last seen"),
)


def _cells(state: ConsumerSummary) -> tuple[object, ...]:
    patterns = dict.fromkeys(pattern for of_source in state.patterns.values() for pattern in of_source)
    if set(patterns) == {"*"}:
        patterns = dict.fromkeys(state.settings.get("types", patterns))
    paused = state.paused
    return (
        state.name,
        ", ".join(sorted(state.patterns)),
        ", ".join(patterns),
        len(state.processes),
        f"{state.waiting:,}",
        f"{state.dead_letters:,}",
        state.rate or "",
        "" if paused is None else f"since {paused.paused_at[:16]}Z{pause_text(paused.ends_at, paused.reason)}",
        "" if state.seen_at is None else f"{state.seen_at[:19]}Z",
    )


@command.command("remove", short_help="Remove a consumer and end its open receipts.")
@click.argument("name")
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@config_option
@app_option
@json_option
def remove_command(name: str, actor: str | None, yes: bool, config: str | None, as_json: bool) -> None:
    """Remove a consumer: receivers write no more receipts for it, and its unfinished receipts and dead letters become
    `ignored`.

    Remove its code and stop its processes first: a process that still has its handlers would register it again. Other
    consumers of the same events are not affected. You can repeat an interrupted removal.

    \b
    oncehook consumers remove analytics
    """
    ended = run(_remove(name, config, actor or whoami(), yes))
    if as_json:
        print_json({"consumer": name, "removed": True, "receipts": ended})
    else:
        click.echo(f"{printable(name)} is removed; {ended:,} receipt{'s' * (ended != 1)} became ignored")


async def _remove(name: str, config: str | None, actor: str, yes: bool) -> int:
    check_removable(name)
    async with opened_store(config) as store:
        await check_consumer(store, name)
        live = {row.worker for row in await store.roster.live_handlers() if row.consumer == name}
        if live:
            processes = f"{len(live)} process{'es' * (len(live) > 1)}"
            click.echo(
                f"warning: {processes} had handlers of {name} within the last minute: {', '.join(sorted(live)[:5])}. "
                f"One that still runs registers {name} again: remove its code and restart it first",
                err=True,
            )
        if not yes:
            await _confirm(store, name)
        with status_line(f"removing {name}") as show:
            return await remove_consumer(
                store, name, actor=actor, progress=lambda ended: show(f"{ended:,} receipts ended")
            )


async def _confirm(store: Store, name: str) -> None:
    counts = await store.consumers.open_receipts(name, MAX_COUNTED)
    failed = counts.pop("failed", 0)
    unfinished = sum(counts.values())
    what = f"{unfinished:,} unfinished receipt{'s' * (unfinished != 1)} and {failed:,} dead letter{'s' * (failed != 1)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would remove {name} and end {what}: confirm with --yes")
    click.confirm(f"Remove {name} and end {what}?", abort=True, err=True)
