"""`oncehook email`: what follows from email events. Status, suppressions, counts, and whether they still follow."""

import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, TextIO

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import Moment, config_option, json_option, opened, print_json, printable, run
from oncehook.cli.tables import Column, print_table
from oncehook.email import DIMENSIONS, Checked, Email, lists
from oncehook.operations.replay import whoami

PAGE = 500
SHOWN = 20


@click.group("email")
def command() -> None:
    """What follows from the email events of sources with `email = true`.

    \b
    oncehook email status MESSAGE           what became of a message, for each recipient
    oncehook email suppressed [ADDRESS]     who must not be sent to, and which event says so
    oncehook email counts --by day,type     how many events
    oncehook email verify                   does all of it still follow from the stored events?
    """


@asynccontextmanager
async def asked(config: str | None) -> AsyncIterator[Email]:
    configuration, _ = configured(config)
    async with opened(configuration) as store:
        yield Email.of(store, configuration.settings)


# -- status ---------------------------------------------------------------------------------------------------------


@command.command("status")
@click.argument("message")
@click.option("--events", "with_events", is_flag=True, help="Also every event of it, oldest first.")
@config_option
@app_option
@json_option
def status_command(message: str, with_events: bool, config: str | None, as_json: bool) -> None:
    """Show what became of a message, by the id that its provider gave it. Exits 1 if nothing is known of it."""

    async def look() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with asked(config) as email:
            return await email.status(message), await email.events(message) if with_events else []

    statuses, events = run(look())
    if not statuses:
        _nothing(f"no email event of {printable(message)} is known", as_json)
    if as_json:
        for row in [*statuses, *events]:
            print_json(row)
        return
    _print(
        ("recipient", "status", "since", "opened", "clicked", "source", "reason"),
        [
            (
                row["recipient"] or "(not told)",
                _with(row["status"], row["bounce"]),
                _second(row["occurred_at"]),
                _second(row["opened_at"]),
                _second(row["clicked_at"]),
                row["source"],
                row["reason"],
            )
            for row in statuses
        ],
    )
    if events:
        _print(
            ("when", "event", "recipient", "receipt", "reason"),
            [
                (_second(e["occurred_at"]), _with(e["type"], e["bounce"]), e["recipient"], e["receipt"], e["reason"])
                for e in events
            ],
        )


# -- suppressions ---------------------------------------------------------------------------------------------------


@command.command("suppressed")
@click.argument("address", required=False)
@config_option
@app_option
@json_option
def suppressed_command(address: str | None, config: str | None, as_json: bool) -> None:
    """List who must not be sent to, or ask about one address. Exits 1 if there is nobody, or the address is not."""

    async def look() -> int:
        async with asked(config) as email:
            if address is not None:
                found = await email.suppression(email.named(address))
                _print_suppressions([found] if found else [], as_json)
                return 1 if found else 0
            return await _list(email, as_json)

    try:
        shown = run(look())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from None
    if not shown:
        _nothing("nobody is suppressed" if address is None else f"{printable(address)} is not suppressed", as_json)


async def _list(email: Email, as_json: bool) -> int:
    shown = 0
    async for page in _pages(email):
        shown += len(page)
        _print_suppressions(page, as_json)
    return shown


async def _pages(email: Email) -> AsyncIterator[list[dict[str, Any]]]:
    after = ""
    while page := await email.suppressions(after=after, limit=PAGE):
        after = page[-1]["address"]
        yield page


@command.command("suppress")
@click.argument("address")
@click.option("--note", help="Why, for whoever looks later.")
@config_option
@app_option
@json_option
def suppress_command(address: str, note: str | None, config: str | None, as_json: bool) -> None:
    """Suppress an address by hand."""
    _change(address, note, config, as_json, lift=False)


@command.command("allow")
@click.argument("address")
@click.option("--note", help="Why, for whoever looks later.")
@config_option
@app_option
@json_option
def allow_command(address: str, note: str | None, config: str | None, as_json: bool) -> None:
    """Lift a suppression by hand: what happened before now no longer counts, what happens later does."""
    _change(address, note, config, as_json, lift=True)


def _change(address: str, note: str | None, config: str | None, as_json: bool, *, lift: bool) -> None:
    async def change() -> dict[str, Any]:
        async with asked(config) as email:
            return await (email.allow if lift else email.suppress)(address, actor=whoami(), note=note)

    try:
        row = run(change())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from None
    if as_json:
        print_json(row)
    else:
        click.echo(f"{printable(row['address'])} {'may be sent to' if row['since'] is None else 'is suppressed'}")


@command.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8-sig"))
@config_option
@app_option
def import_command(file: TextIO, config: str | None) -> None:
    """Suppress the addresses of a CSV file: a column `address`, and `reason`, `since` and `note` where there are.

    The file is read to its end before anything is written.
    """
    changes = list(lists.read(file))

    async def change() -> tuple[int, int]:
        actor = whoami()
        async with asked(config) as email:
            with _progress("importing") as tell:
                done = lifted = 0
                for part in _batched(changes):
                    rows = await email.change(part, actor=actor)
                    done += len(rows)
                    lifted += sum(row["since"] is None for row in rows)
                    tell(f"{done:,} of {len(changes):,} addresses")
        return done, lifted

    done, lifted = run(change())
    click.echo(f"imported {done:,} addresses")
    if lifted:
        click.echo(f"{lifted:,} of them may still be sent to: a person lifted them later than their `since`", err=True)


def _batched(changes: list[Any]) -> Iterator[list[Any]]:
    return (changes[start : start + PAGE] for start in range(0, len(changes), PAGE))


@command.command("export")
@config_option
@app_option
def export_command(config: str | None) -> None:
    """Write every suppression as CSV to standard output."""

    async def export() -> None:
        async with asked(config) as email:
            for line in lists.write([]):
                sys.stdout.write(line)
            async for page in _pages(email):
                sys.stdout.writelines(itertools.islice(lists.write(page), 1, None))

    run(export())


# -- counts ---------------------------------------------------------------------------------------------------------


@command.command("counts")
@click.option("--by", default="day,type", show_default=True, help=f"Any of {','.join(DIMENSIONS)}, with commas.")
@click.option("--since", type=Moment(), help="Events no older: 7d, 2026-11-15.")
@click.option("--until", type=Moment(), help="Events older.")
@click.option("--source", help="Of one source.")
@config_option
@app_option
@json_option
def counts_command(
    by: str, since: datetime | None, until: datetime | None, source: str | None, config: str | None, as_json: bool
) -> None:
    """Count events, by the provider's clock in UTC. Counted from the stored events each time; nothing is incremented.

    By tag, an event with two tags counts for both.
    """
    sides = [side for side in by.split(",") if side]
    wrong = [side for side in sides if side not in DIMENSIONS]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is none of {', '.join(DIMENSIONS)}", param_hint="--by")

    async def count() -> list[dict[str, Any]]:
        async with asked(config) as email:
            return await email.counts(sides, since=since, until=until, source=source)

    rows = run(count())
    if not rows:
        _nothing("there are no email events", as_json)
    if as_json:
        for row in rows:
            print_json(row)
        return
    _print(tuple(rows[0]), [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in rows], last=True)


# -- rebuilding -----------------------------------------------------------------------------------------------------


@command.command("rebuild")
@config_option
@app_option
@json_option
def rebuild_command(config: str | None, as_json: bool) -> None:
    """Refold status and suppressions from the stored events, and mend what differs. Safe beside running workers.

    A suppression whose events were pruned is kept.
    """
    done = run(_check(config, mend=True))
    if as_json:
        print_json(done.as_json())
    else:
        _print_differences(done, "mended")


@command.command("verify")
@config_option
@app_option
@json_option
def verify_command(config: str | None, as_json: bool) -> None:
    """Refold status and suppressions from the stored events and compare; nothing is changed. Exits 1 if any differs."""
    done = run(_check(config, mend=False))
    if as_json:
        for row in done.differences:
            print_json(row)
        print_json(done.as_json())
    else:
        _print_differences(done, "differ")
    sys.exit(1 if done.differences else 0)


async def _check(config: str | None, *, mend: bool) -> Checked:
    async with asked(config) as email:
        with _progress("refolding") as tell:

            def progress(done: Checked) -> None:
                tell(f"{done.messages:,} messages, {done.addresses:,} addresses, {len(done.differences):,} differ")

            return await (email.rebuild if mend else email.verify)(progress)


def _print_differences(done: Checked, word: str) -> None:
    for row in done.differences[:SHOWN]:
        about = row.get("address") or f"{row['message_id']} to {row['recipient']}"
        click.echo(f"{printable(about)}: it said {row['kept']}, the events say {row['folded']}")
    if len(done.differences) > SHOWN:
        click.echo(f"… and {len(done.differences) - SHOWN:,} more")
    click.echo(f"{done.messages:,} messages and {done.addresses:,} addresses: {len(done.differences):,} {word}")


# -- printing -------------------------------------------------------------------------------------------------------


def _print_suppressions(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        columns = ("address", "reason", "since", "source", "event", "note")
        _print(columns, [[_second(row[c]) if c == "since" else row[c] for c in columns] for row in rows])


def _print(titles: tuple[str, ...], rows: Any, *, last: bool = False) -> None:
    columns = [Column(title, right=last and title == titles[-1], cuts=title in ("reason", "note")) for title in titles]
    print_table(columns, list(rows))


def _with(word: str | None, bounce: str | None) -> str:
    return f"{word or 'unknown'} ({bounce})" if bounce else word or "unknown"


def _second(time: str | None) -> str:
    return (time or "")[:19]


def _nothing(sentence: str, as_json: bool) -> None:
    if not as_json:
        click.echo(sentence, err=True)
    sys.exit(1)


@contextmanager
def _progress(doing: str) -> Iterator[Any]:
    """How far it is, on standard error, where a person sees it."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(doing) as status:
        yield lambda text: status.update(f"{doing}: {text}")
