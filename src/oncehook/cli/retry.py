"""`oncehook retry`: run waiting retries now."""

import sys
from dataclasses import replace
from datetime import datetime

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import TimeOption, config_option, json_option, opened_store, print_json, run
from oncehook.cli.show import resolve_all
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.consumers import check_consumer
from oncehook.operations.replay import Replayed, retry_now, with_horizon
from oncehook.operations.selection import is_one_selection
from oncehook.store.rows import Selection
from oncehook.store.store import Store


@click.command("retry")
@click.argument("names", metavar="[RECEIPT]...", nargs=-1)
@config_option
@app_option
@click.option("--all", "everything", is_flag=True, help="Run every waiting retry.")
@click.option("--source", help="Only events of this source.")
@click.option("--tenant", help="Only events of this tenant.")
@click.option("--consumer", help="Only receipts of this consumer.")
@click.option("--type", "type_", help="Only events of this type: a pattern with * and ?, or a dotted prefix.")
@click.option("--object", "object_", help="Only events about the object with this id.")
@click.option("--since", type=TimeOption(), help="Only events received since then: 2h, 7d or 2026-11-15T03:00:00Z.")
@click.option("--until", type=TimeOption(), help="Only events received before then.")
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
def command(
    names: tuple[str, ...],
    config: str | None,
    everything: bool,
    source: str | None,
    tenant: str | None,
    consumer: str | None,
    type_: str | None,
    object_: str | None,
    since: datetime | None,
    until: datetime | None,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Run waiting retries now, for example once the cause is fixed. Exits 1 if no retry was waiting.

    RECEIPT is the number of a receipt with status `retrying`, or the event id of the sender. Alternatively, options
    select events; the command asks for confirmation if they select more than one. Earlier attempts still count. Every
    use is recorded in the audit log. For finished events, use `oncehook replay`.

    \b
    oncehook retry 1042
    oncehook retry --source stripe --yes
    oncehook retry --all
    """
    event_filter = Filter(
        source=source, tenant=tenant, consumer=consumer, type=type_, object=object_, since=since, until=until
    )
    by_filter = not names and event_filter != Filter()
    if everything + by_filter + bool(names) != 1 or (names and not is_one_selection(names, event_filter)):
        raise click.UsageError(
            "pass receipts, select events with options such as --source or --type, or use --all: exactly one of these"
        )
    selection = Selection(event_filter if names else replace(event_filter, status=State.RETRYING.value))
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
        selection = await with_horizon(store, selection)
        if not names and not yes:
            await _confirm(store, selection)
        done = await retry_now(store, selection, actor=actor)
        if not done.matched and selection.filter.consumer is not None:
            await check_consumer(store, selection.filter.consumer)
        return done


async def _confirm(store: Store, selection: Selection) -> None:
    count = sum(row.receipts for row in await store.operations.count(selection))
    if count <= 1:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would run {count:,} retries now: confirm with --yes")
    click.confirm(f"Run {count:,} retries now?", abort=True, err=True)


def _print(done: Replayed) -> None:
    if done.count:
        click.echo(f"{done.count:,} {'retries are' if done.count > 1 else 'retry is'} due now")
    elif not done.matched:
        click.echo("no retry is waiting", err=True)
    for why, number in done.left.most_common():
        finished = why in (State.FAILED, State.PROCESSED, State.IGNORED)
        hint = ": to run a finished event again, use `oncehook replay`" if finished else ""
        click.echo(f"skipped: {number:,} ({why}){hint}", err=True)
