"""`oncehook forget`: erase the payloads about an object, an email address or a tenant, and keep the receipts."""

import sys
from typing import TYPE_CHECKING

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, opened, opened_store, printable, run
from oncehook.config.configuration import Configuration
from oncehook.model.tenant import TENANT_NAME
from oncehook.operations.forget import find_mentions, forget, forget_tenant
from oncehook.operations.replay import whoami
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.email import Email


@click.command("forget")
@config_option
@app_option
@click.option("--object", "object_", metavar="ID", help="Erase events about the object with this id.")
@click.option("--address", metavar="EMAIL", help="Erase events whose body or headers contain this address.")
@click.option("--tenant", metavar="SOURCE/TENANT", help="Erase everything of this tenant, such as stripe/acme.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def command(config: str | None, object_: str | None, address: str | None, tenant: str | None, yes: bool) -> None:
    """Erase the bodies and headers of all events about an object or an email address, or of a tenant. Exits 1 if there
    are none.

    The receipts are kept, so that a repeated delivery is still a duplicate. An event that is not finished becomes a
    dead letter, because its payload is gone. The audit log records the erasure, with a hash in place of the address.

    With --address, the email events and statuses of the address are erased too. A suppression stays in force; only a
    hash of its address is kept.

    With --tenant, everything of the tenant is erased: bodies, headers, error texts, objects, duplicates, effects,
    entities and rejection samples. Of its events, only the ids, types, times and states stay. Remove the tenant first,
    so that it cannot deliver any more.

    \b
    oncehook forget --object cus_1042
    oncehook forget --address jane@example.com --yes
    oncehook forget --tenant stripe/acme
    """
    if bool(object_) + bool(address) + bool(tenant) != 1:
        raise click.UsageError("pass one of --object ID, --address EMAIL and --tenant SOURCE/TENANT")
    if tenant:
        sys.exit(run(_forget_tenant(config, *_parse_tenant(tenant), yes)))
    sys.exit(run(_forget(config, object_ or "", address or "", yes)))


async def _forget(config: str | None, object_id: str, address: str, yes: bool) -> int:
    configuration, _ = configured(config)
    async with opened(configuration) as store:
        receipts = await store.retention.with_object(object_id) if object_id else await _search(store, address)
        email = _email(store, configuration) if address else None
        if not receipts and not (email and await email.knows(address)):
            click.echo("no payload matches", err=True)
            return 1
        _confirm(_number(len(receipts), "payload"), yes)
        facts = await email.forget(address, actor=whoami()) if email else 0
        erased = await forget(store, receipts, actor=whoami(), object_id=object_id, address=address)
        await _warn_of_objects(store)
    click.echo(f"erased {_number(erased, 'payload')}; the receipts are kept")
    if facts:
        click.echo(f"erased the address from {facts:,} email rows; a suppression stays in force, stored as a hash")
    return 0 if erased or facts else 1


def _parse_tenant(text: str) -> tuple[str, str]:
    source, _, tenant = text.partition("/")
    if not source or not TENANT_NAME.fullmatch(tenant):
        raise click.UsageError(f"--tenant {printable(text)} is not SOURCE/TENANT, such as stripe/acme")
    return source, tenant


async def _forget_tenant(config: str | None, source: str, tenant: str, yes: bool) -> int:
    async with opened_store(config) as store:
        counts = await store.retention.tenant_counts(source, tenant)
        if not any((counts.receipts, counts.effects, counts.entities, counts.rejections)):
            click.echo(f"there is nothing of {source}/{tenant}", err=True)
            return 1
        _confirm(f"everything of {source}/{tenant}, which has {_number(counts.receipts, 'event')}", yes)
        erased = await forget_tenant(store, source, tenant, actor=whoami())
        await _warn_of_objects(store)
        managed = await store.directory.tenant(source, tenant)
    click.echo(f"erased {_number(erased, 'payload')} and all other data of {source}/{tenant}; the event ids are kept")
    if managed is not None and managed.removed_at is None:
        click.echo(
            f"{source}/{tenant} can still deliver: run `oncehook tenants remove {source} {tenant}`, then this again",
            err=True,
        )
    return 0


async def _warn_of_objects(store: Store) -> None:
    """Say if the payload store did not delete all objects."""
    waiting = sum([(await shard.payload_objects.counts()).released for shard in store.stores])
    if waiting:
        click.echo(
            f"{_number(waiting, 'payload object')} could not be deleted now: `oncehook prune` tries again", err=True
        )


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _email(store: Store, configuration: Configuration) -> "Email":
    from oncehook.email import Email

    return Email.of(store, configuration.settings)


async def _search(store: Store, address: str) -> list[int]:
    """Scan every payload for the address, and show the progress."""
    from rich.console import Console

    matching, scanned = [], 0
    with Console(stderr=True).status("scanning payloads") as status:
        async for receipt, matches in find_mentions(store, address):
            scanned += 1
            if matches:
                matching.append(receipt)
            if scanned % 1000 == 0:
                status.update(f"scanned {scanned:,} payloads, {len(matching):,} contain the address")
    return matching


def _confirm(subject: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would permanently erase {subject}: confirm with --yes")
    click.confirm(f"Permanently erase {subject}?", abort=True, err=True)
