"""`oncehook fsck`: check the guarantees of Oncehook on a live database."""

import sys
from datetime import datetime
from typing import Any

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import TimeOption, config_option, json_option, opened, print_json, printable, run
from oncehook.cli.progress import status_line
from oncehook.cli.tables import Column, print_table
from oncehook.config.configuration import Configuration
from oncehook.operations.fsck import Fsck, Report, report_json
from oncehook.operations.fsck_bodies import make_fingerprints
from oncehook.store.federation import FederatedStore
from oncehook.store.store import Store

SHOWN = 10
"""How many receipts of one violation are printed. `--json` prints more."""

COLUMNS = (
    Column("guarantee"),
    Column("status", colors={"checked": "green", "violated": "red", "cannot be checked here": "bright_black"}),
    Column("rows", right=True),
    Column("", truncates=True),
)


@click.command("fsck")
@config_option
@app_option
@click.option("--source", help="Check only the events and effects of this source.")
@click.option("--since", type=TimeOption(), help="Check only events and effects since then: 2h, 7d, 2026-11-15.")
@click.option("--no-bodies", is_flag=True, help="Do not read the payloads: quicker, but finds no damaged one.")
@json_option
def command(config: str | None, source: str | None, since: datetime | None, no_bodies: bool, as_json: bool) -> None:
    """Check that the rows of the database agree with what Oncehook guarantees. Changes nothing.

    The inbox can run during the check: rows are read in small steps without locks, and a row that looks wrong is read
    again before it is reported. For each guarantee, the report says whether it was checked, and which part the
    database cannot show. Exits 1 if a guarantee is violated, with the receipts and what to do.

    \b
    oncehook fsck
    oncehook fsck --since 1d --json
    """
    sys.exit(run(_fsck(configured(config)[0], source, since, not no_bodies, as_json)))


async def _fsck(
    configuration: Configuration, source: str | None, since: datetime | None, bodies: bool, as_json: bool
) -> int:
    fingerprints = make_fingerprints(configuration.providers)
    async with opened(configuration) as store:
        await _require_source(store, source)
        with status_line("checking") as show:
            fsck = Fsck(fingerprints=fingerprints, source=source, since=since, bodies=bodies, progress=show)
            report = await fsck.run(store)
        rows = report_json(report, _shard_names(store))
    if as_json:
        for row in rows:
            print_json(row)
    else:
        _print(rows, report)
    return 0 if report.is_clean and not store.missing else 1


async def _require_source(store: Store, source: str | None) -> None:
    """Fail for a source that has no receipt: a mistyped name would be reported as clean."""
    known = await store.receipts.sources()
    if source is not None and source not in known:
        raise click.UsageError(
            f"there is no event of source {source}; sources with events: {', '.join(known) or 'none'}"
        )


def _shard_names(store: Store) -> list[str]:
    return list(store.members) if isinstance(store, FederatedStore) else ["main"]


def _print(rows: list[dict[str, Any]], report: Report) -> None:
    cells = [
        (
            row["invariant"],
            row["status"].replace("_", " "),
            f"{row['examined']:,}" if row["examined"] else "",
            row["promise"],
        )
        for row in rows
    ]
    print_table(COLUMNS, cells)
    for row in rows:
        for reason, number in row["unknown"].items():
            click.echo(f"\n{row['invariant']}: not compared: {number:,} {reason}")
        for problem in row["problems"]:
            click.echo(f"\n{row['invariant']}: not checked to the end: {problem}")
    printed: set[tuple[str, str]] = set()
    for row in rows:
        for violation in row["violations"]:
            if (key := (violation["check"], violation["shard"])) not in printed:
                printed.add(key)
                _print_violation(row["invariant"], violation)
    limits = [f"  {row['invariant']}: {row['cannot_be_checked']}" for row in rows if row["cannot_be_checked"]]
    click.echo("\ncannot be checked here:\n" + "\n".join(limits))
    total = sum(result.number for result in report.results)
    click.echo(f"\n{total:,} violation{'s' if total > 1 else ''}" if total else "\nno violation")


def _print_violation(invariant: str, violation: dict[str, Any]) -> None:
    where = "" if violation["shard"] == "main" else f" in shard {violation['shard']}"
    click.echo(f"\n{invariant} is violated{where}: {violation['sentence']}")
    for row in violation["rows"][:SHOWN]:
        receipt = "" if row["receipt"] is None else f"receipt {row['receipt']}: "
        click.echo(f"  {receipt}{printable(row['detail'])}")
    if violation["number"] > SHOWN:
        click.echo(f"  and {violation['number'] - SHOWN:,} more")
    click.echo(f"  {violation['remedy']}")
