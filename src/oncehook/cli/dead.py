"""`oncehook dead`: list dead letters."""

import sys
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import (
    config_option,
    json_option,
    opened_store,
    print_json,
    run,
)
from oncehook.cli.tables import Column, is_narrow, print_table
from oncehook.model.event import MAIN
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.operations.consumers import check_consumer
from oncehook.operations.dead_letters import group_by_error
from oncehook.store.store import Store

PAGE = 500
MAX_ERRORS = 10_000
MAX_GROUPS = 50
FULL_WIDTH = 120
"""A narrower terminal leaves out the time of the first failure."""


@click.command("dead")
@config_option
@app_option
@click.option("--consumer", help="Only dead letters of this consumer.")
@json_option
def command(config: str | None, consumer: str | None, as_json: bool) -> None:
    """List the dead letters, grouped by error. With --json, print one event per line. Exits 1 if there are none.

    \b
    oncehook dead
    oncehook dead --json | jq .receipt
    oncehook dead --consumer ledger
    oncehook replay --failed             replay them once the cause is fixed
    """
    if not run(_list(config, consumer, as_json)):
        if not as_json:
            click.echo("there are no dead letters", err=True)
        sys.exit(1)


async def _list(config: str | None, consumer: str | None, as_json: bool) -> int:
    async with opened_store(config) as store:
        if as_json:
            count = await _print_events(store, consumer)
        else:
            rows = await store.stats.dead_letters(MAX_ERRORS)
            rows = [row for row in rows if consumer in (None, row.consumer)]
            count = len(rows)
            if rows:
                _print_groups(group_by_error(rows))
        if not count and consumer is not None:
            await check_consumer(store, consumer)
    return count


async def _print_events(store: Store, consumer: str | None) -> int:
    count, before = 0, None
    failed = Filter(status=State.FAILED.value, consumer=consumer)
    while page := await store.receipts.find(failed, limit=PAGE, before=before):
        count += len(page)
        before = rfc3339(page[-1].received_at) or "", page[-1].receipt
        for receipt in page:
            print_json(receipt.as_json())
    return count


def _print_groups(groups: list[dict[str, Any]]) -> None:
    left_out = {"first failed"} if is_narrow(FULL_WIDTH) else set()
    if all(group["consumer"] == MAIN for group in groups):
        left_out.add("consumer")
    names = [column.title for column in COLUMNS if column.title not in left_out]
    rows = [_cells(group) for group in groups[:MAX_GROUPS]]
    print_table(
        [column for column in COLUMNS if column.title in names], [[row[name] for name in names] for row in rows]
    )
    if len(groups) > MAX_GROUPS:
        click.echo(f"… and {len(groups) - MAX_GROUPS:,} more groups; --json lists every event")


COLUMNS = (
    Column("events", right=True),
    Column("source"),
    Column("consumer"),
    Column("handler", truncates=True),
    Column("error", truncates=True, colors="red"),
    Column("first failed"),
    Column("last failed"),
    Column("last receipt", right=True),
)


def _cells(group: dict[str, Any]) -> dict[str, object]:
    return {
        "events": f"{group['receipts']:,}",
        "source": group["source"],
        "consumer": group["consumer"],
        "handler": group["handler"],
        "error": group["error"][:200],
        "first failed": _minute(group["first_failed_at"]),
        "last failed": _minute(group["last_failed_at"]),
        "last receipt": group["last_receipt"],
    }


def _minute(time: str) -> str:
    """`11-16 19:11` of an RFC 3339 time, in UTC."""
    return time[5:16].replace("T", " ")
