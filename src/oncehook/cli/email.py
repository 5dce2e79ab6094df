"""`oncehook email`: query and check the email projection: status, suppressions and counts."""

import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TextIO

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import TimeOption, config_option, json_option, opened, print_json, printable, run
from oncehook.cli.progress import status_line
from oncehook.cli.tables import Column, print_table
from oncehook.email import DIMENSIONS, CheckResult, Email, suppression_csv
from oncehook.operations.replay import whoami

PAGE = 500
MAX_DIFFERENCES = 20


@click.group("email")
def command() -> None:
    """Query the email projection: status, suppressions and counts, derived from the events of sources with
    `email = true`.

    \b
    oncehook email status MESSAGE           status of a message
    oncehook email suppressed [ADDRESS]     suppressed addresses
    oncehook email counts --by day,type     counts of email events
    oncehook email verify                   compare with the stored events
    """


@asynccontextmanager
async def opened_email(config: str | None) -> AsyncIterator[Email]:
    """Open the store, and query the email projection in it."""
    configuration, _ = configured(config)
    async with opened(configuration) as store:
        yield Email.of(store, configuration.settings)


# -- status ---------------------------------------------------------------------------------------------------------


@command.command("status")
@click.argument("message")
@click.option("--events", "with_events", is_flag=True, help="Also list the email events of the message, oldest first.")
@config_option
@app_option
@json_option
def status_command(message: str, with_events: bool, config: str | None, as_json: bool) -> None:
    """Show the delivery status of a message for each recipient. Exits 1 if there is no event of this message.

    MESSAGE is the message id that the provider assigned.

    \b
    oncehook email status 14c5d75ce93.dfd.64b469
    oncehook email status 14c5d75ce93.dfd.64b469 --events --json
    """

    async def query() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with opened_email(config) as email:
            return await email.status(message), await email.events(message) if with_events else []

    statuses, events = run(query())
    if not statuses:
        _exit_empty(f"there is no email event of the message {printable(message)}", as_json)
    if as_json:
        for row in [*statuses, *events]:
            print_json(row)
        return
    _print(
        ("recipient", "status", "since", "opened", "clicked", "source", "reason"),
        [
            (
                row["recipient"] or "(unknown)",
                _with_bounce(row["status"], row["bounce"]),
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
                (
                    _second(e["occurred_at"]),
                    _with_bounce(e["type"], e["bounce"]),
                    e["recipient"],
                    e["receipt"],
                    e["reason"],
                )
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
    """List the suppressed addresses, or check one address. Exits 1 if there is none, or ADDRESS is not suppressed.

    \b
    oncehook email suppressed
    oncehook email suppressed jane@example.com --json
    """

    async def query() -> int:
        async with opened_email(config) as email:
            if address is not None:
                suppression = await email.suppression(email.normalise_address(address))
                _print_suppressions([suppression] if suppression else [], as_json)
                return 1 if suppression else 0
            return await _list(email, as_json)

    try:
        count = run(query())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from None
    if not count:
        _exit_empty(
            "no address is suppressed" if address is None else f"{printable(address)} is not suppressed", as_json
        )


async def _list(email: Email, as_json: bool) -> int:
    count = 0
    async for page in _pages(email):
        count += len(page)
        _print_suppressions(page, as_json)
    return count


async def _pages(email: Email) -> AsyncIterator[list[dict[str, Any]]]:
    after = ""
    while page := await email.suppressions(after=after, limit=PAGE):
        after = page[-1]["address"]
        yield page


@command.command("suppress")
@click.argument("address")
@click.option("--note", help="Reason for the change.")
@config_option
@app_option
@json_option
def suppress_command(address: str, note: str | None, config: str | None, as_json: bool) -> None:
    """Suppress an address manually.

    \b
    oncehook email suppress jane@example.com --note "asked by phone"
    """
    _change(address, note, config, as_json, allow=False)


@command.command("allow")
@click.argument("address")
@click.option("--note", help="Reason for the change.")
@config_option
@app_option
@json_option
def allow_command(address: str, note: str | None, config: str | None, as_json: bool) -> None:
    """Remove a suppression manually. Later events can suppress the address again; earlier ones cannot.

    \b
    oncehook email allow jane@example.com --note "mailbox is back"
    """
    _change(address, note, config, as_json, allow=True)


def _change(address: str, note: str | None, config: str | None, as_json: bool, *, allow: bool) -> None:
    async def change() -> dict[str, Any]:
        async with opened_email(config) as email:
            return await (email.allow if allow else email.suppress)(address, actor=whoami(), note=note)

    try:
        row = run(change())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from None
    if as_json:
        print_json(row)
    else:
        click.echo(f"{printable(row['address'])} {'is allowed' if row['since'] is None else 'is suppressed'}")


@command.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8-sig"))
@config_option
@app_option
def import_command(file: TextIO, config: str | None) -> None:
    """Suppress the addresses in a CSV file with the column `address`, and optionally `reason`, `since` and `note`.

    The command reads the whole file before it writes anything. FILE - is standard input.

    \b
    oncehook email import suppressions.csv
    """
    changes = list(suppression_csv.read(file))

    async def change() -> tuple[int, int]:
        actor = whoami()
        async with opened_email(config) as email:
            with status_line("importing") as show:
                done = allowed = 0
                for part in _batches(changes):
                    rows = await email.change(part, actor=actor)
                    done += len(rows)
                    allowed += sum(row["since"] is None for row in rows)
                    show(f"{done:,} of {len(changes):,} addresses")
        return done, allowed

    done, allowed = run(change())
    click.echo(f"imported {done:,} addresses")
    if allowed:
        click.echo(f"{allowed:,} of them stay allowed: they were allowed manually after their `since`", err=True)


def _batches(changes: list[Any]) -> Iterator[list[Any]]:
    return (changes[start : start + PAGE] for start in range(0, len(changes), PAGE))


@command.command("export")
@config_option
@app_option
def export_command(config: str | None) -> None:
    """Write every suppression as CSV to standard output.

    \b
    oncehook email export > suppressions.csv
    """

    async def export() -> None:
        async with opened_email(config) as email:
            for line in suppression_csv.write([]):
                sys.stdout.write(line)
            async for page in _pages(email):
                sys.stdout.writelines(itertools.islice(suppression_csv.write(page), 1, None))

    run(export())


# -- counts ---------------------------------------------------------------------------------------------------------


@command.command("counts")
@click.option(
    "--by",
    default="day,type",
    show_default=True,
    help=f"Dimensions, separated by commas: any of {', '.join(DIMENSIONS)}.",
)
@click.option("--since", type=TimeOption(), help="Only events since then: 7d or 2026-11-15.")
@click.option("--until", type=TimeOption(), help="Only events before then.")
@click.option("--source", help="Only events of this source.")
@config_option
@app_option
@json_option
def counts_command(
    by: str, since: datetime | None, until: datetime | None, source: str | None, config: str | None, as_json: bool
) -> None:
    """Count email events by day, type or other dimensions. Exits 1 if there are none.

    Days are in UTC, by the provider's timestamps. The command counts the stored events each time. An event
    with two tags counts under both.

    \b
    oncehook email counts
    oncehook email counts --by source,type --since 7d
    """
    dimensions = [name for name in by.split(",") if name]
    unknown = [name for name in dimensions if name not in DIMENSIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(DIMENSIONS)}", param_hint="--by")

    async def count() -> list[dict[str, Any]]:
        async with opened_email(config) as email:
            return await email.counts(dimensions, since=since, until=until, source=source)

    rows = run(count())
    if not rows:
        _exit_empty("there are no email events", as_json)
    if as_json:
        for row in rows:
            print_json(row)
        return
    _print(tuple(rows[0]), [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in rows], last=True)


# -- rebuilding -----------------------------------------------------------------------------------------------------


@command.command("rebuild", short_help="Rebuild status and suppressions from the stored events.")
@config_option
@app_option
@json_option
def rebuild_command(config: str | None, as_json: bool) -> None:
    """Rebuild status and suppressions from the stored events, and fix every difference. Workers can keep running.

    Suppressions whose events were pruned are kept.

    \b
    oncehook email rebuild
    """
    done = run(_check(config, fix=True))
    if as_json:
        print_json(done.as_json())
    else:
        _print_differences(done, "fixed")


@command.command("verify", short_help="Compare status and suppressions with the stored events.")
@config_option
@app_option
@json_option
def verify_command(config: str | None, as_json: bool) -> None:
    """Compare status and suppressions with the stored events, and change nothing. Exits 1 if there is a difference.

    \b
    oncehook email verify
    """
    done = run(_check(config, fix=False))
    if as_json:
        for row in done.differences:
            print_json(row)
        print_json(done.as_json())
    else:
        _print_differences(done, "differ")
    sys.exit(1 if done.differences else 0)


async def _check(config: str | None, *, fix: bool) -> CheckResult:
    async with opened_email(config) as email:
        with status_line("comparing") as show:

            def progress(done: CheckResult) -> None:
                show(f"{done.messages:,} messages, {done.addresses:,} addresses, {len(done.differences):,} differences")

            return await (email.rebuild if fix else email.verify)(progress)


def _print_differences(done: CheckResult, verb: str) -> None:
    for row in done.differences[:MAX_DIFFERENCES]:
        about = row.get("address") or f"{row['message_id']} to {row['recipient']}"
        click.echo(f"{printable(about)}: stored {row['kept']}, but the events give {row['folded']}")
    if len(done.differences) > MAX_DIFFERENCES:
        click.echo(f"… and {len(done.differences) - MAX_DIFFERENCES:,} more")
    compared = f"{_with_number(done.messages, 'message')} and {_with_number(done.addresses, 'address')}"
    click.echo(f"compared {compared}: {len(done.differences):,} {verb}")


def _with_number(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


# -- printing -------------------------------------------------------------------------------------------------------


def _print_suppressions(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        columns = ("address", "reason", "since", "source", "event", "note")
        _print(columns, [[_second(row[c]) if c == "since" else row[c] for c in columns] for row in rows])


def _print(titles: tuple[str, ...], rows: Any, *, last: bool = False) -> None:
    columns = [
        Column(title, right=last and title == titles[-1], truncates=title in ("reason", "note", "event"))
        for title in titles
    ]
    print_table(columns, list(rows))


def _with_bounce(status: str | None, bounce: str | None) -> str:
    return f"{status or 'unknown'} ({bounce})" if bounce else status or "unknown"


def _second(time: str | None) -> str:
    return (time or "")[:19]


def _exit_empty(sentence: str, as_json: bool) -> None:
    if not as_json:
        click.echo(sentence, err=True)
    sys.exit(1)
