"""`oncehook secrets`: show which secrets are in use and which can be removed."""

import sys
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.managed import opened_runtime
from oncehook.cli.options import config_option, console, json_option, print_json, run
from oncehook.operations.rotation import list_secrets


@click.command("secrets")
@config_option
@app_option
@json_option
def command(config: str | None, as_json: bool) -> None:
    """List the secrets of each source, when each last verified a delivery, and whether you can remove it.

    A secret is shown by its position in the configuration and a short fingerprint, never by its value. Exits 1 if no
    source has a secret.

    \b
    oncehook secrets
    oncehook secrets --json | jq 'select(.last_used_at == null)'
    """

    async def query() -> list[dict[str, Any]]:
        async with opened_runtime(config) as (runtime, store):
            return list_secrets(list(runtime.sources.values()), await store.rejections.secrets_used())

    rows = run(query())
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        _print(rows)
    if not rows:
        click.echo("no source has a secret", err=True)
        sys.exit(1)


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("source", "secret", "fingerprint", "verified", "last used", "advice"):
        table.add_column(title, justify="right" if title == "verified" else "left", no_wrap=title != "advice")
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
