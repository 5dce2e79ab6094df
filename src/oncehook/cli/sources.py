"""`oncehook sources`: add, list, rotate and remove sources while the inbox runs."""

import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.managed import (
    actor_option,
    finish_option,
    grace_option,
    new_secret,
    opened_runtime,
    parse_settings,
    read_secrets,
    secret_option,
    stdin_option,
)
from oncehook.cli.options import config_option, json_option, print_json, run
from oncehook.cli.tables import Column, print_table
from oncehook.operations.replay import whoami
from oncehook.operations.rotation import list_secrets
from oncehook.runtime.managed_changes import GRACE, SourceChanges


@click.group("sources")
def command() -> None:
    """Add, list, rotate and remove sources while the inbox runs.

    Oncehook stores these sources in the database, with encrypted secrets. Every process uses a change within a second,
    without a restart. The sources of oncehook.toml and of your code are changed there.

    \b
    oncehook sources add acme --provider stripe --secret env:ACME_SECRET
    oncehook sources rotate acme --secret-stdin
    oncehook sources remove acme
    """


@command.command("add")
@click.argument("name")
@click.option("--provider", help="Provider that sends to the source.  [default: NAME]")
@secret_option
@stdin_option
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Setting of the source; may be repeated.")
@actor_option
@config_option
@app_option
@json_option
def add_command(
    name: str,
    provider: str | None,
    secrets: tuple[str, ...],
    secret_stdin: bool,
    pairs: tuple[str, ...],
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Add a source: every process accepts its deliveries at /webhooks/NAME within a second.

    The settings are those of [sources.NAME] in oncehook.toml. A value is TOML; text needs no quotes. The secrets are
    encrypted and never shown again. This needs a key: see `oncehook keys generate`.

    \b
    oncehook sources add acme --provider stripe --secret env:ACME_SECRET
    oncehook sources add hooks --provider github --secret-stdin --set types='["push", "release"]'
    """
    settings = parse_settings(pairs) | ({} if provider is None else {"provider": provider})
    values = read_secrets(secrets, secret_stdin)
    add = partial(SourceChanges.add, name=name, secrets=values, settings=settings)
    _change(name, config, actor, add, as_json=as_json, result="is added")


@command.command("rotate")
@click.argument("name")
@secret_option
@stdin_option
@grace_option
@finish_option
@actor_option
@config_option
@app_option
@json_option
def rotate_command(
    name: str,
    secrets: tuple[str, ...],
    secret_stdin: bool,
    grace: float | None,
    finish: bool,
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Add a secret to a source. The older secrets stay valid until the grace period ends.

    Set the new secret at the provider afterwards: deliveries that it signed with either secret are accepted. With
    --grace 0s the older secrets end at once, for a secret that leaked.

    \b
    oncehook sources rotate acme --secret env:ACME_SECRET_NEW
    oncehook sources rotate acme --secret-stdin --grace 7d
    oncehook sources rotate acme --finish
    """
    value = new_secret(secrets, secret_stdin, finish=finish, grace=grace)

    def rotate(changes: SourceChanges) -> Awaitable[None]:
        if value is None:
            return changes.finish(name)
        return changes.rotate(name, value, grace=GRACE if grace is None else grace)

    result = "has only its newest secret" if finish else "has a new secret"
    _change(name, config, actor, rotate, as_json=as_json, result=result)


@command.command("remove")
@click.argument("name")
@actor_option
@config_option
@app_option
@json_option
def remove_command(name: str, actor: str | None, config: str | None, as_json: bool) -> None:
    """Remove a source with its managed tenants, and erase their secrets: every process answers 404 to its deliveries
    within a second.

    Its events stay, and handlers still handle the ones that were accepted before.

    \b
    oncehook sources remove acme
    """
    _change(name, config, actor, lambda changes: changes.remove(name), as_json=as_json, result="is removed")


def _change(
    name: str,
    config: str | None,
    actor: str | None,
    change: Callable[[SourceChanges], Awaitable[None]],
    *,
    as_json: bool,
    result: str,
) -> None:
    """Change a source, and print what it is now."""

    async def work() -> None:
        async with opened_runtime(config) as (runtime, store):
            await change(SourceChanges(runtime, store, actor or whoami()))

    run(work())
    if as_json:
        print_json({"source": name, "result": result})
    else:
        click.echo(f"{name} {result}; every process uses this within a second")


@command.command("list")
@config_option
@app_option
@json_option
def list_command(config: str | None, as_json: bool) -> None:
    """List the managed sources with the fingerprints of their secrets. Exits 1 if there is none.

    \b
    oncehook sources list
    oncehook sources list --json
    """
    rows = run(_rows(config))
    for row in rows if as_json else ():
        print_json(row)
    if not rows:
        click.echo("there is no managed source: add one with `oncehook sources add NAME`", err=True)
        sys.exit(1)
    if not as_json:
        columns = [
            Column("source"),
            Column("provider"),
            Column("secrets"),
            Column("last used"),
            Column("changed"),
            Column("by"),
        ]
        print_table(columns, [_cells(row) for row in rows])


async def _rows(config: str | None) -> list[dict[str, Any]]:
    async with opened_runtime(config) as (runtime, store):
        used = await store.rejections.secrets_used()
        rows = []
        for row in sorted(runtime.managed_sources.rows.values(), key=lambda row: row.name):
            source = runtime.sources.get(row.name)
            if row.removed_at is not None:
                continue
            secrets = [
                {"fingerprint": use["mark"], "verified": use["verified"], "last_used_at": use["last_used_at"]}
                for use in (list_secrets([source], used) if source else ())
                if use["secret"] is not None
            ]
            settings = json.loads(row.settings)
            rows.append(
                {
                    "source": row.name,
                    "provider": settings.get("provider", row.name),
                    "settings": {name: value for name, value in settings.items() if name != "provider"},
                    "secrets": secrets,
                    "is_usable": source is not None,
                    "created_at": row.created_at,
                    "updated_at": row.updated_at,
                    "actor": row.actor,
                }
            )
        return rows


def _cells(row: dict[str, Any]) -> list[object]:
    last = max((secret["last_used_at"] or "" for secret in row["secrets"]), default="")
    marks = ", ".join(secret["fingerprint"] for secret in row["secrets"])
    return [
        row["source"],
        row["provider"],
        marks or ("none" if row["is_usable"] else "cannot be used"),
        last[:19] or "never",
        row["updated_at"][:19],
        row["actor"],
    ]
