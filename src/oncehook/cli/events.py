"""`oncehook events`: list events."""

import sys
from datetime import datetime

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import (
    TimeOption,
    config_option,
    json_option,
    opened,
    print_json,
    run,
)
from oncehook.cli.tables import Column, print_table
from oncehook.model.event import MAIN
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.states import UNHANDLED, State
from oncehook.operations.consumers import check_consumer
from oncehook.operations.payloads import search_note
from oncehook.operations.selection import find_events

COLORS = {
    State.RECEIVED: "cyan",
    State.PROCESSING: "blue",
    State.PROCESSED: "green",
    State.RETRYING: "yellow",
    State.FAILED: "red",
    State.IGNORED: "bright_black",
}


@click.command("events")
@config_option
@app_option
@click.option("--source", help="Only events of this source.")
@click.option("--tenant", help="Only events of this tenant.")
@click.option("--consumer", help="Only receipts of this consumer.")
@click.option("--type", "type_", help="Only events of this type: a pattern with * and ?, or a dotted prefix.")
@click.option("--object", "object_", help="Only events about the object with this id.")
@click.option("--status", type=click.Choice([s.value for s in State]), help="Only events with this status.")
@click.option("--unhandled", is_flag=True, help="Only waiting events that no running process has a handler for.")
@click.option(
    "--since", type=TimeOption(), help="Only events received at or after this time: 2h, 7d or 2026-11-15T03:00:00Z."
)
@click.option("--until", type=TimeOption(), help="Only events received before this time.")
@click.option("--search", help="Only events with this id, with this object id, or with this text in the payload.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000), help="Maximum number of events."
)
@json_option
def command(
    config: str | None,
    source: str | None,
    tenant: str | None,
    consumer: str | None,
    type_: str | None,
    object_: str | None,
    status: str | None,
    unhandled: bool,
    since: datetime | None,
    until: datetime | None,
    search: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List events, newest first. Exits 1 if no event matches.

    \b
    oncehook events --since 2h --status failed
    oncehook events --source stripe --type 'invoice.*' --json | jq .event_id
    oncehook events --search in_1042
    oncehook events --unhandled
    """
    if unhandled and status is not None:
        raise click.UsageError("--unhandled and --status cannot be combined: unhandled events are received or retrying")
    event_filter = Filter(
        source=source,
        tenant=tenant,
        consumer=consumer,
        type=type_,
        object=object_,
        status=UNHANDLED if unhandled else status,
        since=since,
        until=until,
        search=search,
    )
    if not run(_list(config, event_filter, limit, as_json)):
        if not as_json:
            click.echo("no event matches", err=True)
        sys.exit(1)


async def _list(config: str | None, event_filter: Filter, limit: int, as_json: bool) -> int:
    count = 0
    rows: list[Receipt] = []
    configuration, _ = configured(config)
    async with opened(configuration) as store:
        note = await search_note(store, event_filter, configuration.sources)
        if note is not None:
            click.echo(note, err=True)
        async for receipt in find_events(store, event_filter, limit):
            count += 1
            if as_json:
                print_json(receipt.as_json())
            else:
                rows.append(receipt)
        if not count and event_filter.consumer is not None:
            await check_consumer(store, event_filter.consumer)
    if rows:
        print_events(rows)
    return count


COLUMNS = (
    Column("received"),
    Column("source"),
    Column("consumer"),
    Column("type", truncates=True),
    Column("object", truncates=True),
    Column("event id", truncates=True),
    Column("status", colors={state.value: color for state, color in COLORS.items()}),
    Column("dup", right=True),
    Column("receipt", right=True),
)


def print_events(receipts: list[Receipt]) -> None:
    """Print a table of receipts, with their consumers if one is not `main`."""
    has_consumers = any(receipt.consumer != MAIN for receipt in receipts)
    print_table(
        [column for column in COLUMNS if has_consumers or column.title != "consumer"],
        [
            (
                f"{receipt.received_at.astimezone():%m-%d %H:%M:%S}",
                receipt.scope,
                *([receipt.consumer] if has_consumers else ()),
                receipt.type,
                receipt.object_id,
                receipt.event_id,
                receipt.status.value,
                receipt.duplicates or "",
                receipt.receipt,
            )
            for receipt in receipts
        ],
    )
