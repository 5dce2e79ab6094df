"""`oncehook forget`: the payloads about an object or an address are erased, the receipts stay."""

import sys
from typing import TYPE_CHECKING

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, opened, run
from oncehook.config.configuration import Configuration
from oncehook.operations.prune import forget, mentioning
from oncehook.operations.replay import whoami
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.email import Email


@click.command("forget")
@config_option
@app_option
@click.option("--object", "object_", metavar="ID", help="The events about the object of this id.")
@click.option("--address", metavar="EMAIL", help="The events whose body or headers hold this address.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(config: str | None, object_: str | None, address: str | None, yes: bool) -> None:
    """Erase the bodies and headers of events about an object or an address, in any state. Exits 1 if there are none.

    Their receipts stay: what comes again is a duplicate, as before. An event that was not handled yet has lost what to
    handle, and becomes a dead letter. Who erased, when and which receipts is recorded; an address only as a hash.
    Email facts and statuses of an address go too; its suppression stays, by a hash, and still counts.

    \b
    oncehook forget --object cus_1042
    oncehook forget --address jane@example.com --yes
    """
    if bool(object_) == bool(address):
        raise click.UsageError("give --object ID or --address EMAIL, one of them")
    sys.exit(run(_forget(config, object_ or "", address or "", yes)))


async def _forget(config: str | None, object_id: str, address: str, yes: bool) -> int:
    configuration, _ = configured(config)
    async with opened(configuration) as store:
        found = await store.retention.about_object(object_id) if object_id else await _search(store, address)
        email = _email(store, configuration) if address else None
        if not found and not (email and await email.knows(address)):
            click.echo("no payload matches", err=True)
            return 1
        _confirm(len(found), yes)
        facts = await email.forget(address, actor=whoami()) if email else 0
        erased = await forget(store, found, actor=whoami(), object_id=object_id, address=address)
    click.echo(f"erased {erased:,} payload{'s' * (erased != 1)}; the receipts stay")
    if facts:
        click.echo(f"erased what {facts:,} rows knew of its email; a suppression stays, by a hash")
    return 0 if erased or facts else 1


def _email(store: Store, configuration: Configuration) -> "Email":
    from oncehook.email import Email

    return Email.of(store, configuration.settings)


async def _search(store: Store, address: str) -> list[int]:
    """Every payload is read for it, which takes its time: how many were is shown to a person."""
    from rich.console import Console

    found, looked = [], 0
    with Console(stderr=True).status("looking") as status:
        async for receipt, matches in mentioning(store, address):
            looked += 1
            if matches:
                found.append(receipt)
            if looked % 1000 == 0:
                status.update(f"looked at {looked:,} payloads, {len(found):,} hold the address")
    return found


def _confirm(count: int, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would erase {count:,} payload{'s' * (count != 1)} for good: say --yes")
    click.confirm(f"Erase {count:,} payload{'s' * (count != 1)} for good?", abort=True, err=True)
