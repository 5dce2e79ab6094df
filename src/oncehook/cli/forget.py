"""`oncehook forget`: erase the payloads about an object or an email address, and keep the receipts."""

import sys
from typing import TYPE_CHECKING

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, opened, run
from oncehook.config.configuration import Configuration
from oncehook.operations.forget import find_mentions, forget
from oncehook.operations.replay import whoami
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.email import Email


@click.command("forget")
@config_option
@app_option
@click.option("--object", "object_", metavar="ID", help="Erase events about the object with this id.")
@click.option("--address", metavar="EMAIL", help="Erase events whose body or headers contain this address.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def command(config: str | None, object_: str | None, address: str | None, yes: bool) -> None:
    """Erase the bodies and headers of all events about an object or an email address. Exits 1 if there are none.

    The receipts are kept, so that a repeated delivery is still a duplicate. An event that is not finished becomes a
    dead letter, because its payload is gone. The audit log records the erasure, with a hash in place of the address.

    With --address, the email events and statuses of the address are erased too. A suppression stays in force; only a
    hash of its address is kept.

    \b
    oncehook forget --object cus_1042
    oncehook forget --address jane@example.com --yes
    """
    if bool(object_) == bool(address):
        raise click.UsageError("pass either --object ID or --address EMAIL")
    sys.exit(run(_forget(config, object_ or "", address or "", yes)))


async def _forget(config: str | None, object_id: str, address: str, yes: bool) -> int:
    configuration, _ = configured(config)
    async with opened(configuration) as store:
        receipts = await store.retention.with_object(object_id) if object_id else await _search(store, address)
        email = _email(store, configuration) if address else None
        if not receipts and not (email and await email.knows(address)):
            click.echo("no payload matches", err=True)
            return 1
        _confirm(len(receipts), yes)
        facts = await email.forget(address, actor=whoami()) if email else 0
        erased = await forget(store, receipts, actor=whoami(), object_id=object_id, address=address)
    click.echo(f"erased {erased:,} payload{'s' * (erased != 1)}; the receipts are kept")
    if facts:
        click.echo(f"erased the address from {facts:,} email rows; a suppression stays in force, stored as a hash")
    return 0 if erased or facts else 1


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


def _confirm(count: int, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would permanently erase {count:,} payload{'s' * (count != 1)}: confirm with --yes"
        )
    click.confirm(f"Permanently erase {count:,} payload{'s' * (count != 1)}?", abort=True, err=True)
