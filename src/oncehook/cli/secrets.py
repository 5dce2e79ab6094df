"""`oncehook secrets`: which secrets still verify deliveries, and which may go."""

import sys
from datetime import datetime
from typing import Any

import click

from oncehook.cli.options import config_option, console, json_option, opened, print_json, run
from oncehook.cli.serve import load_inbox
from oncehook.extract import moment
from oncehook.inbox import Inbox
from oncehook.settings import load
from oncehook.source import Source
from oncehook.values import as_duration

QUIET = 3 * 86400.0
"""Seconds without a use after which an old secret is said to be no longer needed, or the provider's horizon."""


@click.command("secrets")
@click.option("--app", help="module:inbox, where sources are added in code.")
@config_option
@json_option
def command(app: str | None, config: str | None, as_json: bool) -> None:
    """List each source's secrets, when each last verified a delivery, and whether it is safe to remove.

    A secret is shown by its place in the configuration and a short mark, never by its value. Exits 1 without sources.

    \b
    oncehook secrets
    """
    configuration = load(config)
    inbox = load_inbox(app) if app else Inbox(config=configuration)

    async def used() -> list[dict[str, Any]]:
        async with opened(configuration) as store:
            return await store.secrets_used()

    rows = list_secrets(list(inbox.sources.values()), run(used()))
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        _print(rows)
    if not rows:
        click.echo("there are no sources with secrets", err=True)
        sys.exit(1)


def list_secrets(sources: list[Source], used: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each configured secret, and a word on what to do with it."""
    uses = {(row["source"], row["secret"]): row for row in used}
    rows = []
    for source in sorted(sources, key=lambda source: source.name):
        if source.verifier is None or source.waits_for_secret:
            continue
        newest = max(
            (uses[key]["last_used_at"] for mark in source.marks if (key := (source.name, mark)) in uses), default=""
        )
        for index, mark in enumerate(source.marks):
            row = uses.get((source.name, mark))
            rows.append(
                {
                    "source": source.name,
                    "secret": index,
                    "mark": mark,
                    "verified": row["verified"] if row else 0,
                    "last_used_at": row["last_used_at"] if row else None,
                    "advice": _advice(source, row, newest),
                }
            )
    return rows


def _advice(source: Source, row: dict[str, Any] | None, newest: str) -> str:
    if len(source.marks) == 1:
        return "in use" if row else "not used yet"
    if row is None:
        return "never used: newly added, or safe to remove" if newest else "not used yet"
    if row["last_used_at"] == newest:
        return "in use"
    quiet = _seconds_between(row["last_used_at"], row["now"])
    needed = max(QUIET, source.provider.horizon or 0.0)
    ago = f"last used {_roughly(quiet)} ago"
    if quiet > needed:
        return f"{ago}: safe to remove"
    return f"{ago}: keep it until {_roughly(needed)} have passed, {source.provider.title} may retry with it"


def _seconds_between(earlier: str, later: str) -> float:
    return (_read(later) - _read(earlier)).total_seconds()


def _read(text: str) -> datetime:
    found = moment(text)
    assert found is not None
    return found


def _roughly(seconds: float) -> str:
    unit = 86400.0 if seconds >= 2 * 86400 else 3600.0 if seconds >= 2 * 3600 else 60.0
    return (
        as_duration(max(1, round(seconds / unit)) * unit)
        .replace("d", " days")
        .replace("h", " hours")
        .replace("m", " min")
    )


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("source", "secret", "mark", "verified", "last used", ""):
        table.add_column(title, justify="right" if title == "verified" else "left", no_wrap=title != "")
    for row in rows:
        table.add_row(
            row["source"],
            f"secrets[{row['secret']}]",
            row["mark"],
            f"{row['verified']:,}",
            (row["last_used_at"] or "never")[:19],
            row["advice"],
        )
    console().print(table)
