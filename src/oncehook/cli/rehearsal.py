"""`oncehook replay --rehearse`: run handlers in transactions that are rolled back, and print their statements."""

from typing import TYPE_CHECKING, Any

import click

from oncehook.cli.options import print_json, printable
from oncehook.model.receipt import Receipt
from oncehook.operations.rehearse import DIRECT_CALLS_NOTE, Rehearsal
from oncehook.operations.replay import pages
from oncehook.runtime.rehearsals import make_rehearse
from oncehook.store.rows import Selection
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


async def rehearse_all(store: Store, runtime: "Runtime", selection: Selection, *, as_json: bool) -> int:
    """Rehearse the selected receipts that can be replayed. Returns the exit code, and disposes of the user's engine."""
    try:
        return await _rehearse_pages(store, runtime, selection, as_json=as_json)
    finally:
        if runtime.sessions is not None:
            await runtime.sessions.dispose()


async def _rehearse_pages(store: Store, runtime: "Runtime", selection: Selection, *, as_json: bool) -> int:
    succeeded = rehearsed = 0
    rehearse = await make_rehearse(runtime, store)
    async for page in pages(store, selection):
        for receipt in [receipt for receipt, why in page if why is None]:
            rehearsal = await rehearse(receipt)
            rehearsed += 1
            succeeded += rehearsal.error is None
            if as_json:
                print_json(rehearsal.as_json())
            else:
                _print_rehearsal(receipt, rehearsal)
    if not as_json:
        summary = f"rehearsed {rehearsed:,}, {rehearsed - succeeded:,} failed. All statements were rolled back."
        click.echo(f"{summary} {DIRECT_CALLS_NOTE}")
    return 0 if rehearsed and succeeded == rehearsed else 1


def _print_rehearsal(receipt: Receipt, rehearsal: Rehearsal) -> None:
    handler = rehearsal.handler or "no handler in this app; the event would wait for a process that has one"
    click.echo(f"{receipt.receipt}  {printable(receipt.source)}  {printable(receipt.type)}  → {handler}")
    for statement in rehearsal.statements:
        rows = "" if statement.rows is None else f"   {statement.rows:,} row{'s' * (statement.rows != 1)}"
        undone = "   rolled back by the handler" if statement.undone else ""
        click.echo(f"    {printable(' '.join(statement.sql.split()))}{rows}{undone}")
        if statement.args:
            click.echo(f"        {printable(', '.join(_short(value) for value in statement.args))}")
        if statement.error:
            click.echo(f"        ! {printable(statement.error)}")
    if not rehearsal.statements and rehearsal.handler and not rehearsal.error:
        click.echo("    no statements through tx")
    _print_effects(rehearsal)
    if rehearsal.error:
        click.echo(f"    failed: {printable(rehearsal.error)}")


def _print_effects(rehearsal: Rehearsal) -> None:
    """Print the effects, new or already recorded, and the entities for which the event is stale."""
    for effect in rehearsal.effects:
        state = "new" if effect["new"] else f"already recorded ({effect['status']}), not repeated"
        click.echo(f"    effect {printable(effect['key'])} → {printable(effect['target'])}   {state}")
    for entity in rehearsal.stale:
        click.echo(f"    stale: a newer event of {printable(entity)} was handled")
    if rehearsal.repeated:
        click.echo("    not called: another event with the same once_per value was handled")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
