"""`oncehook tenants`: add, list, rotate and remove the tenants of a source while the inbox runs."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.managed import (
    actor_option,
    finish_option,
    grace_option,
    new_secret,
    opened_runtime,
    read_secrets,
    secret_option,
    stdin_option,
)
from oncehook.cli.options import config_option, json_option, print_json, printable, run
from oncehook.cli.tables import Column, print_table
from oncehook.operations.replay import whoami
from oncehook.runtime.managed_changes import GRACE
from oncehook.runtime.tenant_changes import TenantChanges, managed_source, tenant_row

PAGE = 500


@click.group("tenants")
def command() -> None:
    """Add, list, rotate and remove the tenants of a source while the inbox runs.

    The source has `tenants = true`. Oncehook stores its tenants in the database, with encrypted secrets. Every process
    uses a change within a second, without a restart.

    \b
    oncehook tenants add stripe acme --secret env:ACME_SECRET
    oncehook tenants rotate stripe acme --secret-stdin
    oncehook tenants remove stripe acme
    """


@command.command("add")
@click.argument("source")
@click.argument("tenant")
@secret_option
@stdin_option
@actor_option
@config_option
@app_option
@json_option
def add_command(
    source: str,
    tenant: str,
    secrets: tuple[str, ...],
    secret_stdin: bool,
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Add a tenant: every process accepts its deliveries at /webhooks/SOURCE/TENANT within a second.

    The secrets are encrypted and never shown again. This needs a key: see `oncehook keys generate`.

    \b
    oncehook tenants add stripe acme --secret env:ACME_SECRET
    oncehook tenants add stripe acme --secret-stdin < secret.txt
    """
    values = read_secrets(secrets, secret_stdin)
    change = _Change(source, tenant, config, actor, as_json)
    change.run(lambda changes: changes.add(tenant, values), "is added")


@command.command("rotate")
@click.argument("source")
@click.argument("tenant")
@secret_option
@stdin_option
@grace_option
@finish_option
@actor_option
@config_option
@app_option
@json_option
def rotate_command(
    source: str,
    tenant: str,
    secrets: tuple[str, ...],
    secret_stdin: bool,
    grace: float | None,
    finish: bool,
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Add a secret to a tenant. The older secrets stay valid until the grace period ends.

    Set the new secret at the provider afterwards: deliveries that it signed with either secret are accepted.

    \b
    oncehook tenants rotate stripe acme --secret env:ACME_SECRET_NEW
    oncehook tenants rotate stripe acme --secret-stdin --grace 7d
    oncehook tenants rotate stripe acme --finish
    """
    value = new_secret(secrets, secret_stdin, finish=finish, grace=grace)

    def rotate(changes: TenantChanges) -> Awaitable[None]:
        if value is None:
            return changes.finish(tenant)
        return changes.rotate(tenant, value, grace=GRACE if grace is None else grace)

    change = _Change(source, tenant, config, actor, as_json)
    change.run(rotate, "has only its newest secret" if finish else "has a new secret")


@command.command("remove")
@click.argument("source")
@click.argument("tenant")
@actor_option
@config_option
@app_option
@json_option
def remove_command(source: str, tenant: str, actor: str | None, config: str | None, as_json: bool) -> None:
    """Remove a tenant and erase its secrets: every process answers 404 to its deliveries within a second.

    Its events stay, and handlers still handle the ones that were accepted before.

    \b
    oncehook tenants remove stripe acme
    """
    _Change(source, tenant, config, actor, as_json).run(lambda changes: changes.remove(tenant), "is removed")


class _Change:
    """Changes a tenant, and prints what it is now."""

    def __init__(self, source: str, tenant: str, config: str | None, actor: str | None, as_json: bool) -> None:
        self.source, self.tenant = source, tenant
        self.config = config
        self.actor = actor or whoami()
        self.as_json = as_json

    def run(self, change: Callable[[TenantChanges], Awaitable[None]], result: str) -> None:
        async def work() -> None:
            async with opened_runtime(self.config) as (runtime, store):
                await change(TenantChanges(runtime, store, self.actor, self.source))

        run(work())
        if self.as_json:
            print_json({"source": self.source, "tenant": self.tenant, "result": result})
        else:
            name = printable(f"{self.source}/{self.tenant}")
            click.echo(f"{name} {result}; every process uses this within a second")


@command.command("list")
@click.argument("source")
@click.option("--search", default="", help="Only tenants whose name begins with this.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000), help="Maximum number of tenants."
)
@config_option
@app_option
@json_option
def list_command(source: str, search: str, limit: int, config: str | None, as_json: bool) -> None:
    """List the managed tenants of a source by name, with the fingerprints of their secrets. Exits 1 if there is none.

    \b
    oncehook tenants list stripe
    oncehook tenants list stripe --search acme --json
    """
    rows = run(_rows(config, source, search, limit))
    for row in rows if as_json else ():
        print_json(row)
    if not rows:
        click.echo("no tenant matches: add one with `oncehook tenants add SOURCE TENANT`", err=True)
        sys.exit(1)
    if not as_json:
        columns = [Column("tenant"), Column("secrets"), Column("rotation ends"), Column("changed"), Column("by")]
        print_table(columns, [_cells(row) for row in rows])


async def _rows(config: str | None, source: str, search: str, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with opened_runtime(config) as (runtime, store):
        managed_source(runtime, source)
        while len(rows) < limit:
            after = rows[-1]["tenant"] if rows else ""
            size = min(PAGE, limit - len(rows))
            page = await store.directory.tenants(source, search=search, after=after, limit=size)
            rows += [tenant_row(store.keys, row) for row in page]
            if len(page) < size:
                break
    return rows


def _cells(row: dict[str, Any]) -> list[object]:
    ends = max((secret["ends_at"] or "" for secret in row["secrets"]), default="")
    marks = ", ".join(secret["fingerprint"] for secret in row["secrets"])
    shown = marks or ("cannot be decrypted" if row["problem"] else "none")
    return [row["tenant"], shown, ends[:19], row["updated_at"][:19], row["actor"]]
