"""`oncehook backfill`: give a consumer the events that arrived before it subscribed."""

import asyncio
import sys
from dataclasses import replace
from datetime import datetime

import click

from oncehook.cli.app import app_option, configured_inbox
from oncehook.cli.options import ParsedOption, TimeOption, config_option, json_option, opened, print_json, run
from oncehook.cli.progress import status_line
from oncehook.model.values import rate as parse_rate
from oncehook.operations.backfill import Backfilled, backfill
from oncehook.runtime import Runtime
from oncehook.runtime.backfills import plan_for


@click.command("backfill")
@click.argument("consumer")
@click.option(
    "--since",
    type=TimeOption(),
    required=True,
    metavar="30d",
    help="Events received since then: an age such as 30d, or a time such as 2026-11-15T03:00:00Z.",
)
@click.option("--source", help="Only events of this source.")
@click.option("--type", "type_", help="Only events of this type: a pattern with * and ?, or a dotted prefix.")
@click.option(
    "--rate",
    type=ParsedOption("rate", parse_rate),
    metavar="N/s",
    help="Maximum rate of events, such as 500/s or 100/m.",
)
@click.option("--dry-run", is_flag=True, help="Count the events, and change nothing.")
@config_option
@app_option
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@json_option
def command(
    consumer: str,
    since: datetime,
    source: str | None,
    type_: str | None,
    rate: float | None,
    dry_run: bool,
    config: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Give a consumer the events that arrived before it subscribed, if their payloads are still kept. Exits 1 if there
    is none.

    The events are treated as if they arrived now: the filters of the source and of the consumer apply. Workers handle
    them after the events that already wait. An event that the consumer has a receipt of is left as it is, so you can
    interrupt the command and run it again.

    \b
    oncehook backfill analytics --since 30d --dry-run
    oncehook backfill analytics --since 30d --rate 500/s
    oncehook backfill analytics --since 7d --source stripe --type 'invoice.*'
    """
    runtime = configured_inbox(config)._runtime
    done = run(_backfill(runtime, consumer, since, source, type_, rate=rate, dry_run=dry_run, actor=actor))
    if as_json:
        print_json({"consumer": consumer, "dry_run": dry_run, **done.as_json()})
    else:
        _print(consumer, done, dry_run)
    sys.exit(0 if done.created + done.ignored else 1)


async def _backfill(
    runtime: Runtime,
    consumer: str,
    since: datetime,
    source: str | None,
    type_: str | None,
    *,
    rate: float | None,
    dry_run: bool,
    actor: str | None,
) -> Backfilled:
    async with opened(replace(runtime.configuration, settings=runtime.settings)) as store:
        plan = await plan_for(runtime, store, consumer, since=since, source=source, type=type_, dry_run=dry_run)
        total, done = await store.backfill.count(plan.events), Backfilled()
        with status_line("counting" if dry_run else "backfilling") as show:

            def progress(so_far: Backfilled) -> None:
                nonlocal done
                done = so_far
                show(f"{so_far.matched:,} of {total:,} events, {so_far.created:,} receipts")

            try:
                return await backfill(store, plan, actor=actor, rate=rate, dry_run=dry_run, progress=progress)
            except asyncio.CancelledError:
                click.echo(
                    f"\nstopped after {done.matched:,} of {total:,} events. Run the command again to continue", err=True
                )
                raise


def _print(consumer: str, done: Backfilled, dry_run: bool) -> None:
    if done.created + done.ignored:
        ignored = f" and {done.ignored:,} that its filters leave out" if done.ignored else ""
        verb = "would get" if dry_run else "gets"
        unchanged = "; nothing was changed" if dry_run else ""
        click.echo(f"{consumer} {verb} {done.created:,} event{'s' * (done.created != 1)}{ignored}{unchanged}")
    else:
        click.echo(f"there is no event that {consumer} does not have", err=True)
    for why, number in done.left.most_common():
        click.echo(f"skipped: {number:,} ({why})", err=True)
