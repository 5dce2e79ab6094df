"""`oncehook intake`: count the messages in the queues of sources."""

import sys
from collections.abc import Mapping

import click

from oncehook.cli.app import app_option, configured_inbox
from oncehook.cli.options import config_option, json_option, print_json, printable, run
from oncehook.cli.tables import Column, print_table
from oncehook.intake.status import IntakeStatus, read_statuses
from oncehook.model.values import as_duration
from oncehook.providers.source import Source


@click.group("intake")
def command() -> None:
    """Show the queues of sources with an `intake`.

    \b
    oncehook intake status
    oncehook intake status --json
    """


@command.command("status", short_help="Count what waits in each queue.")
@config_option
@app_option
@json_option
def status_command(config: str | None, as_json: bool) -> None:
    """Count the messages that wait in each queue, those that consumers hold, and the dead letters.

    Needs the broker and not the database. Exits 1 if no source has a queue, or a queue does not respond.

    \b
    oncehook intake status
    oncehook intake status --json
    """
    statuses = run(read_statuses(configured_inbox(config)._runtime.sources))
    if as_json:
        for status in statuses:
            print_json(status.as_json())
    elif statuses:
        print_table(COLUMNS, [_cells(status) for status in statuses])
    else:
        click.echo("no source has an intake", err=True)
    sys.exit(0 if statuses and all(status.problem is None for status in statuses) else 1)


COLUMNS = (
    Column("source"),
    Column("queue", truncates=True),
    Column("waiting", right=True),
    Column("held", right=True),
    Column("oldest", right=True),
    Column("dead letters", right=True),
    Column("consumers", right=True),
    Column("filled by"),
    Column("problem", truncates=True),
)


def _cells(status: IntakeStatus) -> tuple[object, ...]:
    counts = status.counts
    oldest = None if counts is None else counts.oldest_seconds
    filled_by = "the receiver" if status.format == "oncehook" else status.format
    return (
        status.source,
        printable(status.queue),
        _number(None if counts is None else counts.waiting),
        _number(None if counts is None else counts.in_flight),
        "" if oldest is None else as_duration(round(oldest)),
        _number(None if counts is None else counts.dead),
        _number(None if counts is None else counts.consumers),
        filled_by if status.trust is None else f"{filled_by} (trusts the {status.trust})",
        printable(status.problem or ""),
    )


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


async def intake_findings(sources: Mapping[str, Source]) -> list[tuple[str, str]]:
    """The findings of the doctor about each queue: a level and a sentence."""
    findings = []
    for status in await read_statuses(sources):
        where = f"source {status.source}: the queue {status.queue}"
        if status.counts is None:
            findings.append(("wrong", f"{where} cannot be used: {status.problem}"))
            continue
        findings.append(("ok", f"{where} answers, and {status.counts.waiting:,} messages wait in it"))
        if status.trust is not None:
            findings.append(
                ("note", f"{where} is trusted: messages of its {status.trust} have no signature of the sender")
            )
        if status.counts.dead is None:
            findings.append(("note", f"{where} has no dead-letter queue: messages that are rejected stay in it"))
        elif status.counts.dead:
            findings.append(("wrong", f"{where} has {status.counts.dead:,} dead letters, which were never claimed"))
    return findings
