"""`oncehook replay`: finished events are handled again, or rehearsed."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.events import _print_table
from oncehook.cli.options import Moment, config_option, json_option, opened, print_json, printable, run
from oncehook.cli.show import resolve_all
from oncehook.receipt import Filter, Receipt, State
from oncehook.rehearse import REALLY_MADE, Rehearsal, rehearse
from oncehook.replay import BATCH, REPLAYABLE, Progress, Replayed, bounded, pages, replay, survey
from oncehook.settings import Configuration
from oncehook.store import Selection, Store

if TYPE_CHECKING:
    from oncehook.inbox import Inbox

Rehearsing = Callable[[Receipt], Awaitable[Rehearsal]]
STATES = sorted(state.value for state in REPLAYABLE)


@dataclass
class How:
    """What is to be done with what was selected."""

    dry_run: bool
    rehearse: bool
    yes: bool
    as_json: bool
    actor: str | None


@click.command("replay")
@click.argument("names", metavar="[RECEIPT]...", nargs=-1)
@config_option
@click.option("--failed", is_flag=True, help="Only dead letters: the same as --status failed.")
@click.option("--source", help="Only of this source.")
@click.option("--type", "type_", help="Only of this type; a pattern with * and ?, or a dotted prefix.")
@click.option("--object", "object_", help="Only about the object of this id.")
@click.option("--status", type=click.Choice(STATES), help="Only in this state.")
@click.option("--since", type=Moment(), help="Only received from then on: 2h, 7d or 2026-11-15T03:00:00Z.")
@click.option("--until", type=Moment(), help="Only received before then.")
@click.option("--search", help="An id, an object's id, or a text in the payload.")
@click.option("--handled-by", metavar="VERSION", help="Only what this version of your code has attempted.")
@click.option("--dry-run", is_flag=True, help="List what would be replayed, and write nothing.")
@click.option("--rehearse", "rehearsed", is_flag=True, help="Run the handlers of --app in transactions rolled back.")
@app_option
@click.option("--actor", help="Who is recorded as having done it.  [default: user@host]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask, however many.")
@json_option
def command(
    names: tuple[str, ...],
    config: str | None,
    failed: bool,
    source: str | None,
    type_: str | None,
    object_: str | None,
    status: str | None,
    since: datetime | None,
    until: datetime | None,
    search: str | None,
    handled_by: str | None,
    dry_run: bool,
    rehearsed: bool,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Have finished events handled again: dead letters, processed and ignored ones. Exits 1 if there was nothing to do.

    RECEIPT is its number, or the sender's event id; or a filter picks many, and is asked for when it picks more than
    one. An event under way is left alone, and so is one whose payload was pruned. Who replayed what is recorded.

    --rehearse shows which statements a handler would run through tx, and leaves nothing in the database; calls that the
    handler makes itself are really made.

    \b
    oncehook replay 1042
    oncehook replay --failed --since 2h --dry-run
    oncehook replay --source stripe --type 'invoice.*' --handled-by 9f3c2e1 --yes
    oncehook replay evt_1PqX7r --rehearse --app hooks:inbox
    """
    if failed and status not in (None, State.FAILED.value):
        raise click.UsageError(f"--failed and --status {status} exclude each other")
    wanted = Filter(source, type_, object_, "failed" if failed else status, since, until, search)
    by_filter = wanted != Filter() or handled_by is not None
    if bool(names) == by_filter:
        raise click.UsageError("name receipts, or pick some with --failed, --source, --since … (not both, not neither)")
    configuration, inbox = configured(config)
    if rehearsed and (inbox is None or dry_run):
        raise click.UsageError("--rehearse runs your handlers: name them with --app module:inbox, without --dry-run")
    how = How(dry_run, rehearsed, yes, as_json, actor)
    sys.exit(run(_replay(names, Selection(wanted, handled_by=handled_by), configuration, inbox, how)))


async def _replay(
    names: tuple[str, ...], selection: Selection, configuration: Configuration, inbox: "Inbox | None", how: How
) -> int:
    async with opened(configuration) as store:
        if names:
            receipts = await resolve_all(store, names)
            if not receipts:
                return 1
            selection = replace(selection, receipts=receipts)
        selection = await bounded(store, selection)
        would = await survey(store, selection)
        if not would.matched:
            click.echo("no event matches", err=True)
            return 1
        if how.dry_run:
            return await _list(store, selection, would, how)
        if not names and not how.yes and would.count > 1:
            _confirm(would, how)
        if how.rehearse:
            assert inbox is not None, "--rehearse needs an app"
            async with _rehearsing(store, inbox) as rehearsing:
                return await _rehearse(store, rehearsing, selection, would, how)
        with _progress(would) as progress:
            done = await replay(store, selection, actor=how.actor, progress=progress)
    _tell(done, how)
    return 0 if done.count else 1


@asynccontextmanager
async def _rehearsing(store: Store, inbox: "Inbox") -> AsyncIterator[Rehearsing]:
    """How the handlers of the inbox are rehearsed."""
    rehearsing = partial(
        rehearse, store, inbox.handlers, effects=inbox.effects, canonical=inbox.canonicals, transaction=None
    )
    if inbox.sessions is None:
        yield rehearsing
        return
    from oncehook.inbox import make_sessions

    sessions = make_sessions(inbox.sessions.engine, store)
    sessions.check_handlers(inbox.handlers)
    await sessions.check_database()
    try:
        yield partial(rehearsing, transaction=sessions.transaction)
    finally:
        await sessions.dispose()


def _confirm(would: Replayed, how: How) -> None:
    verb = "rehearse" if how.rehearse else "replay"
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {verb} {_listed(would)}: say --yes, or look first with --dry-run")
    if how.rehearse:
        click.echo(REALLY_MADE, err=True)
    click.confirm(f"{verb.capitalize()} {_listed(would)}?", abort=True, err=True)


def _listed(would: Replayed) -> str:
    """1,204 events (1,200 processed, 4 failed)"""
    states = ", ".join(f"{number:,} {state}" for state, number in would.replayed.most_common())
    return f"{would.count:,} event{'s' * (would.count != 1)}" + (f" ({states})" if states else "")


def _tell(done: Replayed, how: How) -> None:
    if how.as_json:
        print_json(done.as_json())
        return
    if done.count:
        click.echo(f"replayed {_listed(done)}")
    _tell_left(done)


def _tell_left(done: Replayed) -> None:
    for why, number in done.left.most_common():
        hint = ": `oncehook retry` runs a waiting retry now" if why == State.RETRYING else ""
        click.echo(f"left alone: {number:,} ({why}){hint}", err=True)


# -- looking first --------------------------------------------------------------------------------------------------


async def _list(store: Store, selection: Selection, would: Replayed, how: How) -> int:
    rows: list[Receipt] = []
    async for page in pages(store, selection):
        movable = [receipt for receipt, why in page if why is None]
        if how.as_json:
            for receipt in movable:
                print_json(receipt.as_json())
        else:
            rows += movable
    if not how.as_json:
        if rows:
            _print_table(rows)
            click.echo(f"would replay {_listed(would)}; nothing was written")
        _tell_left(would)
    return 0 if would.count else 1


async def _rehearse(store: Store, rehearsing: Rehearsing, selection: Selection, would: Replayed, how: How) -> int:
    good = rehearsed = 0
    async for page in pages(store, selection):
        for receipt, why in page:
            if why is None:
                rehearsal = await rehearsing(receipt)
                rehearsed += 1
                good += rehearsal.error is None
                if how.as_json:
                    print_json(rehearsal.as_json())
                else:
                    _print_rehearsal(receipt, rehearsal)
    if not how.as_json:
        _tell_left(would)
        click.echo(f"rehearsed {rehearsed:,}, {rehearsed - good:,} failed. All of it was rolled back. {REALLY_MADE}")
    return 0 if rehearsed and good == rehearsed else 1


def _print_rehearsal(receipt: Receipt, rehearsal: Rehearsal) -> None:
    handler = rehearsal.handler or "no handler: it would only be marked processed"
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


# -- while it runs --------------------------------------------------------------------------------------------------


@contextmanager
def _progress(would: Replayed) -> Iterator[Progress | None]:
    """A bar on standard error, where a person sees it and it is worth one."""
    if would.matched <= BATCH or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("replaying", total=would.matched)
        yield lambda done: bar.update(task, completed=done.matched)
