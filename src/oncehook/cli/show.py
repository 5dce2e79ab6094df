"""`oncehook show`: one event, whole."""

import json
import sys
from typing import Any

import click
import msgspec

from oncehook.cli.events import COLOURS
from oncehook.cli.options import config_option, console, json_option, opened_store, print_json, printable, run
from oncehook.receipt import Filter, Payload, Receipt
from oncehook.store import Store


@click.command("show")
@click.argument("receipt")
@config_option
@json_option
@click.option("--raw", is_flag=True, help="Only the body, byte for byte as it was received.")
def command(receipt: str, config: str | None, as_json: bool, raw: bool) -> None:
    """Show one event: what arrived, when, how often, and where it stands. Exits 1 if there is none.

    RECEIPT is its number, or the sender's event id.

    \b
    oncehook show 1042
    oncehook show evt_1PqX7r
    oncehook show 1042 --raw > body.json
    """
    sys.exit(run(_show(receipt, config, as_json, raw)))


async def _show(name: str, config: str | None, as_json: bool, raw: bool) -> int:
    async with opened_store(config) as store:
        receipt = await _resolve(store, name)
        if receipt is None:
            click.echo(f"oncehook: there is no event {name}", err=True)
            return 1
        payload = await store.payload(receipt.receipt)
        duplicates = await store.duplicates(receipt.receipt)
    if raw:
        return _print_raw(payload)
    if as_json:
        view = None if payload is None else _json_view(payload)
        headers = None if payload is None else payload.headers
        print_json({**receipt.as_json(), "payload": view, "headers": headers, "deliveries": duplicates})
    else:
        _print(receipt, payload, duplicates)
    return 0


async def _resolve(store: Store, name: str) -> Receipt | None:
    """By number first, then by the sender's id; an id that two sources share must be told apart by number."""
    found = await store.get(int(name)) if name.isascii() and name.isdigit() and len(name) < 19 else None
    if found is not None:
        return found
    same = await store.find(Filter(event_id=name), limit=20)
    if len(same) > 1:
        choices = ", ".join(f"{r.receipt} ({r.source})" for r in same)
        raise click.UsageError(f"{name} is in several sources: give the receipt, one of {choices}")
    return same[0] if same else None


def _print_raw(payload: Payload | None) -> int:
    if payload is None:
        click.echo("oncehook: the payload of this event was pruned", err=True)
        return 1
    sys.stdout.buffer.write(payload.body)
    sys.stdout.buffer.flush()
    return 0


def _json_view(payload: Payload) -> Any:
    try:
        return msgspec.json.decode(payload.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _print(receipt: Receipt, payload: Payload | None, duplicates: list[dict[str, Any]]) -> None:
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in receipt.as_json().items():
        if value not in (None, ""):
            style = COLOURS[receipt.status] if name == "status" else ""
            table.add_row(Text(name, style="bold"), Text(printable(value), style=style))
    out.print(table)
    for duplicate in duplicates:
        other = "" if duplicate["same_body"] else "   with another body"
        out.print(
            Text(f"delivered again {duplicate['received_at']}{other}", style="" if duplicate["same_body"] else "yellow")
        )
    if payload is None:
        out.print("\nThe payload was pruned.")
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
