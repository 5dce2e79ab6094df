"""`oncehook secrets`: which secrets still verify deliveries, and which may go."""

import sys
from dataclasses import replace
from typing import Any

import click

from oncehook.cli.app import app_option, configured_inbox
from oncehook.cli.options import config_option, console, json_option, opened, print_json, run
from oncehook.model.rows import SecretUse
from oncehook.operations.rotation import list_secrets


@click.command("secrets")
@config_option
@app_option
@json_option
def command(config: str | None, as_json: bool) -> None:
    """List each source's secrets, when each last verified a delivery, and whether it is safe to remove.

    A secret is shown by its place in the configuration and a short mark, never by its value. Exits 1 without sources.

    \b
    oncehook secrets
    """
    runtime = configured_inbox(config)._runtime

    async def used() -> list[SecretUse]:
        async with opened(replace(runtime.configuration, settings=runtime.settings)) as store:
            return await store.rejections.secrets_used()

    rows = list_secrets(list(runtime.sources.values()), run(used()))
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        _print(rows)
    if not rows:
        click.echo("there are no sources with secrets", err=True)
        sys.exit(1)


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("source", "secret", "mark", "verified", "last used", ""):
        table.add_column(title, justify="right" if title == "verified" else "left", no_wrap=title != "")
    for row in rows:
        table.add_row(
            row["source"],
            "removed" if row["secret"] is None else f"secrets[{row['secret']}]",
            row["mark"],
            f"{row['verified']:,}",
            (row["last_used_at"] or "never")[:19],
            row["advice"],
        )
    console().print(table)
