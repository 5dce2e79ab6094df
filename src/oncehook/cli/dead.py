"""`oncehook dead`: list dead letters."""

import sys
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import (
    config_option,
    console,
    json_option,
    opened_store,
    print_json,
    printable,
    run,
)
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.operations.dead_letters import grouped
from oncehook.store.store import Store

PAGE = 500
MAX_ERRORS = 10_000
MAX_GROUPS = 50


@click.command("dead")
@config_option
@app_option
@json_option
def command(config: str | None, as_json: bool) -> None:
    """List the dead letters, grouped by error. With --json, print one event per line. Exits 1 if there are none.

    \b
    oncehook dead
    oncehook dead --json | jq .receipt
    oncehook replay --failed             replay them once the cause is fixed
    """
    if not run(_list(config, as_json)):
        if not as_json:
            click.echo("there are no dead letters", err=True)
        sys.exit(1)


async def _list(config: str | None, as_json: bool) -> int:
    async with opened_store(config) as store:
        if as_json:
            return await _print_events(store)
        rows = await store.stats.dead_letters(MAX_ERRORS)
    if rows:
        _print_groups(grouped(rows))
    return len(rows)


async def _print_events(store: Store) -> int:
    shown, before = 0, None
    while page := await store.receipts.find(Filter(status=State.FAILED.value), limit=PAGE, before=before):
        shown += len(page)
        before = rfc3339(page[-1].received_at) or "", page[-1].receipt
        for receipt in page:
            print_json(receipt.as_json())
    return shown


def _print_groups(groups: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("events", justify="right", no_wrap=True)
    for title in ("source", "handler", "error", "first failed", "last failed"):
        table.add_column(title, overflow="fold", no_wrap=title.endswith("failed"))
    table.add_column("last receipt", justify="right", no_wrap=True)
    for group in groups[:MAX_GROUPS]:
        table.add_row(
            f"{group['receipts']:,}",
            Text(printable(group["source"])),
            Text(printable(group["handler"])),
            Text(printable(group["error"])[:200], style="red"),
            group["first_failed_at"][:19],
            group["last_failed_at"][:19],
            str(group["last_receipt"]),
        )
    console().print(table)
    if len(groups) > MAX_GROUPS:
        click.echo(f"… and {len(groups) - MAX_GROUPS:,} more groups; --json lists every event")
