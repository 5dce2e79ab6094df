"""`oncehook retry`: waiting retries run now."""

import sys
from dataclasses import replace
from datetime import datetime

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import Moment, config_option, json_option, opened_store, print_json, run
from oncehook.cli.show import resolve_all
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.replay import Replayed, bounded, retry_now
from oncehook.store.rows import Selection
from oncehook.store.store import Store


@click.command("retry")
@click.argument("names", metavar="[RECEIPT]...", nargs=-1)
@config_option
@app_option
@click.option("--all", "everything", is_flag=True, help="Every waiting retry.")
@click.option("--source", help="Only of this source.")
@click.option("--type", "type_", help="Only of this type; a pattern with * and ?, or a dotted prefix.")
@click.option("--object", "object_", help="Only about the object of this id.")
@click.option("--since", type=Moment(), help="Only received from then on: 2h, 7d or 2026-11-15T03:00:00Z.")
@click.option("--until", type=Moment(), help="Only received before then.")
@click.option("--actor", help="Who is recorded as having done it.  [default: user@host]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask, however many.")
@json_option
def command(
    names: tuple[str, ...],
    config: str | None,
    everything: bool,
    source: str | None,
    type_: str | None,
    object_: str | None,
    since: datetime | None,
    until: datetime | None,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Run waiting retries now, once the cause is fixed: their next attempt is due, and workers are woken.

    RECEIPT is the number of an event in the state `retrying`, or the sender's event id; or a filter picks many, and you
    confirm when it picks more than one. Attempts that were made still count. Who asked is recorded. A finished event
    is for `oncehook replay`. Exits 1 if no retry was waiting.

    \b
    oncehook retry 1042
    oncehook retry --source stripe --yes
    oncehook retry --all
    """
    wanted = Filter(source=source, type=type_, object=object_, since=since, until=until)
    if everything + (wanted != Filter()) + bool(names) != 1:
        raise click.UsageError("name receipts, or pick some with --source, --type …, or all with --all (one of these)")
    selection = Selection(wanted if names else replace(wanted, status=State.RETRYING.value))
    done = run(_retry(config, names, selection, actor, yes))
    if as_json:
        print_json({"matched": done.matched, "retried": done.count, "left": dict(sorted(done.left.items()))})
    else:
        _print(done)
    sys.exit(0 if done.count else 1)


async def _retry(
    config: str | None, names: tuple[str, ...], selection: Selection, actor: str | None, yes: bool
) -> Replayed:
    async with opened_store(config) as store:
        if names:
            receipts = await resolve_all(store, names)
            if not receipts:
                sys.exit(1)
            selection = replace(selection, receipts=receipts)
        selection = await bounded(store, selection)
        if not names and not yes:
            await _confirm(store, selection)
        return await retry_now(store, selection, actor=actor)


async def _confirm(store: Store, selection: Selection) -> None:
    count = sum(row.receipts for row in await store.operations.count(selection))
    if count <= 1:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would run {count:,} retries now: say --yes")
    click.confirm(f"Run {count:,} retries now?", abort=True, err=True)


def _print(done: Replayed) -> None:
    if done.count:
        click.echo(f"{done.count:,} {'retries are' if done.count > 1 else 'retry is'} due now")
    elif not done.matched:
        click.echo("no retry is waiting", err=True)
    for why, number in done.left.most_common():
        finished = why in (State.FAILED, State.PROCESSED, State.IGNORED)
        hint = ": `oncehook replay` has finished events handled again" if finished else ""
        click.echo(f"left alone: {number:,} ({why}){hint}", err=True)
