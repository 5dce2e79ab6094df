"""`oncehook show`: one event with its deliveries, attempts, effects and payload."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from oncehook.cli.app import app_option
from oncehook.cli.effects import COLORS as EFFECT_COLORS
from oncehook.cli.events import COLORS
from oncehook.cli.options import (
    config_option,
    console,
    json_option,
    opened_store,
    print_json,
    printable,
    run,
)
from oncehook.cli.tables import Column, print_table
from oncehook.effects.effect import effect_json
from oncehook.handlers.order import entities_of
from oncehook.model.effect import EffectFilter, StoredEntity, StoredNoop
from oncehook.model.nearest import hint
from oncehook.model.receipt import Filter, Receipt, StoredPayload
from oncehook.model.rows import ConsumerReceipt, ReplayEntry, StoredAttempt, StoredDuplicate
from oncehook.model.timestamps import rfc3339
from oncehook.operations.dead_letters import failed_without_attempt
from oncehook.operations.payloads import read_payload
from oncehook.operations.selection import EventAmbiguous, EventNotFound, find_event, find_receipts
from oncehook.store.store import Store

MAX_EFFECTS = 1000
ATTEMPT_COLORS = {"processed": "green", "no handler": "bright_black", "released": "bright_black", "retrying": "yellow"}


@click.command("show")
@click.argument("receipt")
@config_option
@app_option
@json_option
@click.option("--consumer", help="Show the attempts and effects of this consumer.  [default: main]")
@click.option("--raw", is_flag=True, help="Print only the body, byte for byte as it was received.")
def command(receipt: str, consumer: str | None, config: str | None, as_json: bool, raw: bool) -> None:
    """Show one event: its status, duplicates, attempts, effects, headers and body. Exits 1 if it does not exist.

    RECEIPT is the number of the receipt, or the event id of the sender. If the event has several consumers, a table
    compares their states, and the history below it is that of one consumer: of --consumer, or of the receipt.

    \b
    oncehook show 1042
    oncehook show evt_1PqX7r
    oncehook show evt_1PqX7r --consumer analytics
    oncehook show 1042 --raw > body.json
    """
    sys.exit(run(_show(receipt, consumer, config, as_json=as_json, raw=raw)))


async def _show(name: str, consumer: str | None, config: str | None, *, as_json: bool, raw: bool) -> int:
    async with opened_store(config) as store:
        receipt = await resolve(store, name)
        consumers = [] if receipt is None else await store.receipts.consumers_of(receipt)
        if receipt is not None and consumer is not None:
            receipt = await store.receipts.get(_receipt_of(consumers, consumer))
        if receipt is None:
            click.echo(f"oncehook: there is no event {printable(name)}", err=True)
            if await store.receipts.find(Filter(object=name), limit=1):
                click.echo(
                    f"This is the id of an object. To list its events: `oncehook events --object {printable(name)}`",
                    err=True,
                )
            return 1
        payload, unreadable = await read_payload(store, receipt.receipt)
        duplicates = await store.receipts.duplicates(receipt.receipt)
        attempts = await store.receipts.attempts(receipt.receipt)
        replays = await store.operations.replays(receipt.receipt) if receipt.replays else []
        effects = [effect_json(row) for row in await store.effects.find(_recorded_by(receipt), limit=MAX_EFFECTS)]
        noops = await store.effects.noops(receipt.receipt)
        entities = await entities_of(store, receipt)
    if raw:
        return _print_raw(payload, unreadable)
    if as_json:
        view = None if payload is None else _json_view(payload)
        headers = None if payload is None else payload.headers
        history = {"deliveries": duplicates, "attempts_history": attempts, "replays_history": replays}
        requested = {"effects": effects, "noops": noops, "entities": entities}
        shown = {"payload": view, "headers": headers, "unreadable": unreadable}
        print_json({**receipt.as_json(), "consumers": consumers, **shown, **history, **requested})
    else:
        has_consumers = len(consumers) > 1
        _print_facts(receipt, has_consumers=has_consumers)
        if has_consumers:
            _print_consumers(receipt, consumers)
        _print_timeline(
            receipt, duplicates=duplicates, attempts=attempts, replays=replays, noops=noops, effects=effects
        )
        _print_entities(receipt, entities)
        _print_payload(payload, unreadable)
    return 0


def _receipt_of(consumers: Sequence[ConsumerReceipt], name: str) -> int:
    """Return the number of a consumer's receipt. Fails if the event has no such consumer."""
    receipts = {row.consumer: row.receipt for row in consumers}
    if name not in receipts:
        known = hint(name, receipts, "consumers of the event")
        raise click.UsageError(f"the event has no receipt of a consumer {printable(name)}: {known}")
    return receipts[name]


def _recorded_by(receipt: Receipt) -> EffectFilter:
    return EffectFilter(receipt=receipt.receipt)


async def resolve(store: Store, name: str) -> Receipt | None:
    """Find an event by the number of its receipt or by its id. Fails if two sources have an event with this id."""
    try:
        return await find_event(store, name)
    except EventAmbiguous as error:
        raise click.UsageError(str(error)) from None


async def resolve_all(store: Store, names: Sequence[str]) -> tuple[int, ...]:
    """The receipts of all names. If one is unknown, prints an error and returns no receipts."""
    try:
        return await find_receipts(store, names)
    except EventAmbiguous as error:
        raise click.UsageError(str(error)) from None
    except EventNotFound as error:
        click.echo(f"oncehook: {printable(error)}", err=True)
        return ()


def _print_raw(payload: StoredPayload | None, unreadable: str | None) -> int:
    if payload is None:
        click.echo(f"oncehook: {unreadable or 'the payload of this event was pruned'}", err=True)
        return 1
    sys.stdout.buffer.write(payload.body)
    sys.stdout.buffer.flush()
    return 0


def _json_view(payload: StoredPayload) -> Any:
    try:
        return msgspec.json.decode(payload.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _print_facts(receipt: Receipt, *, has_consumers: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in receipt.as_json().items():
        if value not in (None, "") and (has_consumers or name != "consumer"):
            style = COLORS[receipt.status] if name == "status" else ""
            table.add_row(Text(name, style="bold"), Text(printable(value), style=style))
    if receipt.unhandled_at is not None:
        since = rfc3339(receipt.unhandled_at)
        table.add_row(
            Text("unhandled", style="bold"), Text(f"no running process has had a handler since {since}", style="red")
        )
    console().print(table)


CONSUMER_COLUMNS = (
    Column("consumer"),
    Column("status", colors={state.value: color for state, color in COLORS.items()}),
    Column("attempts", right=True),
    Column("next attempt"),
    Column("handler", truncates=True),
    Column("last error", truncates=True, colors="red"),
    Column("receipt", right=True),
)


def _print_consumers(receipt: Receipt, consumers: list[ConsumerReceipt]) -> None:
    """Print the states of the event's consumers side by side, and whose history follows."""
    click.echo()
    rows = [
        (
            row.consumer,
            row.status,
            row.attempts,
            (row.next_attempt_at or "")[:19].replace("T", " "),
            row.handler or ("no handler" if row.unhandled_at else ""),
            (row.last_error or "")[:200],
            row.receipt,
        )
        for row in consumers
    ]
    print_table(CONSUMER_COLUMNS, rows)
    has_history = receipt.attempts or receipt.replays or receipt.duplicates or receipt.failed_at
    click.secho(f"\nHistory of {printable(receipt.consumer)}{'' if has_history else ': no attempts yet'}", bold=True)


def _print_timeline(
    receipt: Receipt,
    *,
    duplicates: list[StoredDuplicate],
    attempts: list[StoredAttempt],
    replays: list[ReplayEntry],
    noops: list[StoredNoop],
    effects: list[dict[str, Any]],
) -> None:
    """Print the history of the event and its effects, oldest first."""
    from rich.text import Text

    entries = [(row.received_at, *_describe_duplicate(row)) for row in duplicates]
    entries += [(row.ended_at or "", *_describe_attempt(row)) for row in attempts]
    if (failed_at := failed_without_attempt(receipt, attempts)) is not None:
        entries.append((failed_at, f"dead letter: {printable(receipt.last_error)}", "red"))
    entries += [(row.at, f"replayed by {printable(row.actor)}", "bold") for row in replays]
    entries += [(row.at, _describe_noop(row), "bright_black") for row in noops]
    entries += [(row["done_at"] or row["created_at"], *_describe_effect(row)) for row in reversed(effects)]
    out = console()
    for at, text, style in sorted(entries, key=lambda entry: entry[0]):
        out.print(Text(f"{at}  {text}", style=style))
    _print_traceback(attempts)


def _print_traceback(attempts: list[StoredAttempt]) -> None:
    """Print the traceback of the last failed attempt."""
    failed = next((row for row in reversed(attempts) if row.traceback), None)
    if failed is not None:
        click.echo(f"\nTraceback of attempt {failed.number}:")
        for line in (failed.traceback or "").splitlines():
            click.echo(f"  {printable(line)}")
        click.echo(f"  {printable(failed.error)}\n")


def _print_entities(receipt: Receipt, entities: list[StoredEntity]) -> None:
    """Print the state of the entities that this event advanced or was stale for."""
    for row in entities:
        facts = [
            f"{name} {printable(value)}"
            for name in ("state", "at", "version")
            if (value := getattr(row, name)) is not None
        ]
        facts += ["final"] if row.is_terminal else []
        newest = "this event" if row.receipt == receipt.receipt else f"event {row.receipt}"
        click.echo("   ".join([f"{printable(row.kind)} {printable(row.id)}", *facts, f"set by {newest}"]))


def _describe_duplicate(row: StoredDuplicate) -> tuple[str, str]:
    return ("delivered again", "") if row.same_body else ("delivered again   with a different body", "yellow")


def _describe_attempt(row: StoredAttempt) -> tuple[str, str]:
    facts = [f"attempt {row.number}: {row.outcome}"]
    facts += [
        f"{name} {printable(value)}" for name in ("handler", "version", "worker") if (value := getattr(row, name))
    ]
    facts += [printable(row.error)] if row.error else []
    return "   ".join(facts), ATTEMPT_COLORS.get(row.outcome, "red")


def _describe_noop(row: StoredNoop) -> str:
    summary = (
        "not repeated, already recorded: effect" if row.reason == "effect" else "stale, a newer event was handled:"
    )
    return f"{summary} {printable(row.key)}"


def _describe_effect(row: dict[str, Any]) -> tuple[str, str]:
    summary = f"effect {row['id']}: {row['status']}   {printable(row['key'])} → {printable(row['target'])}"
    error = f"   {printable(row['last_error'])}" if row["last_error"] else ""
    return summary + error, EFFECT_COLORS[row["status"]]


def _print_payload(payload: StoredPayload | None, unreadable: str | None) -> None:
    from rich.syntax import Syntax
    from rich.text import Text

    out = console()
    if payload is None:
        out.print(Text(f"\n{unreadable or 'The payload was pruned.'}"))
        return
    out.print()
    for name, value in payload.headers.items():
        out.print(Text(f"{name}: {printable(value)}", style="bright_black"))
    out.print()
    view = _json_view(payload)
    if view is None:
        out.print(Text(printable(payload.body[:4000].decode("utf-8", "replace"))))
    else:
        out.print(
            Syntax(json.dumps(view, indent=2, ensure_ascii=True), "json", background_color="default", word_wrap=True)
        )
