"""`oncehook replay --rehearse`: handlers run in transactions that are rolled back, and their statements are printed."""

from typing import TYPE_CHECKING, Any

import click

from oncehook.cli.options import print_json, printable
from oncehook.model.receipt import Receipt
from oncehook.operations.rehearse import REALLY_MADE, Rehearsal
from oncehook.operations.replay import pages
from oncehook.runtime.rehearsing import rehearsing
from oncehook.store.rows import Selection
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


async def rehearse_all(store: Store, runtime: "Runtime", selection: Selection, *, as_json: bool) -> int:
    """Rehearse what can be replayed of the selection; the exit code. The engine is closed: the process ends."""
    try:
        return await _rehearse_pages(store, runtime, selection, as_json=as_json)
    finally:
        if runtime.sessions is not None:
            await runtime.sessions.dispose()


async def _rehearse_pages(store: Store, runtime: "Runtime", selection: Selection, *, as_json: bool) -> int:
    good = rehearsed = 0
    rehearse = await rehearsing(runtime, store)
    async for page in pages(store, selection):
        for receipt in [receipt for receipt, why in page if why is None]:
            rehearsal = await rehearse(receipt)
            rehearsed += 1
            good += rehearsal.error is None
            if as_json:
                print_json(rehearsal.as_json())
            else:
                _print_rehearsal(receipt, rehearsal)
    if not as_json:
        click.echo(f"rehearsed {rehearsed:,}, {rehearsed - good:,} failed. All of it was rolled back. {REALLY_MADE}")
    return 0 if rehearsed and good == rehearsed else 1


def _print_rehearsal(receipt: Receipt, rehearsal: Rehearsal) -> None:
    handler = rehearsal.handler or "no handler in this app: it would wait for a process that has one"
    click.echo(f"{receipt.receipt}  {printable(receipt.source)}  {printable(receipt.type)}  → {handler}")
    for statement in rehearsal.statements:
        rows = "" if statement.rows is None else f"   {statement.rows:,} row{'s' * (statement.rows != 1)}"
        undone = "   undone by the handler" if statement.undone else ""
        click.echo(f"    {printable(' '.join(statement.sql.split()))}{rows}{undone}")
        if statement.args:
            click.echo(f"        {printable(', '.join(_short(value) for value in statement.args))}")
        if statement.error:
            click.echo(f"        ! {printable(statement.error)}")
    if not rehearsal.statements and rehearsal.handler and not rehearsal.error:
        click.echo("    no statement through tx")
    _print_asked(rehearsal)
    if rehearsal.error:
        click.echo(f"    it failed: {printable(rehearsal.error)}")


def _print_asked(rehearsal: Rehearsal) -> None:
    """Which effects would be new, which are recorded already, and what came too late."""
    for effect in rehearsal.effects:
        known = "new" if effect["new"] else f"recorded before: {effect['status']}, and not repeated"
        click.echo(f"    effect {printable(effect['key'])} → {printable(effect['target'])}   {known}")
    for entity in rehearsal.stale:
        click.echo(f"    stale: newer is known of {printable(entity)}")
    if rehearsal.repeated:
        click.echo("    not called: another event of the same identity was handled (once_per)")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:79] + "…"
