"""`oncehook replay`: finished events are handled again, or rehearsed."""

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.events import print_events
from oncehook.cli.options import Moment, Parsed, config_option, json_option, opened, print_json, run
from oncehook.cli.progress import outcomes_text, replay_bar, wait_until_handled
from oncehook.cli.rehearsal import rehearse_all
from oncehook.cli.show import resolve_all
from oncehook.cli.tables import Column, print_table
from oncehook.config.configuration import Configuration
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.states import State
from oncehook.model.values import positive_duration, rate
from oncehook.operations.dead_letters import common, shape
from oncehook.operations.rehearse import REALLY_MADE
from oncehook.operations.replay import REPLAYABLE, Outcomes, Replayed, bounded, pages, replay, survey
from oncehook.store.rows import Selection
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.inbox import Inbox

STATES = sorted(state.value for state in REPLAYABLE)
EXAMPLES = 10
"""Events that a dry run shows of many."""


@dataclass(kw_only=True)
class How:
    """What is to be done with what was selected."""

    dry_run: bool
    rehearse: bool
    yes: bool
    as_json: bool
    actor: str | None
    rate: float | None
    wait: bool
    timeout: float | None


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
@click.option("--after", type=int, default=0, metavar="RECEIPT", help="Only receipts with a greater number.")
@click.option(
    "--rate",
    type=Parsed("rate", rate),
    metavar="N/s",
    help="Return events to the queue no faster than this: 50/s, 100/m.",
)
@click.option("--wait", is_flag=True, help="Wait until they are handled, and say how many failed again.")
@click.option(
    "--timeout", type=Parsed("duration", positive_duration), metavar="10m", help="With --wait: wait no longer."
)
@click.option("--dry-run", is_flag=True, help="Say what would be replayed, and write nothing.")
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
    after: int,
    rate: float | None,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
    rehearsed: bool,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Have finished events handled again: dead letters, processed and ignored ones. Exits 1 if there was nothing to do.

    RECEIPT is its number, or the sender's event id; or a filter picks many, and you confirm when it picks more than
    one. An event under way is left alone, and so is one whose payload was pruned. Who replayed what is recorded.

    --rehearse shows which statements a handler would run through tx, and leaves nothing in the database; calls that the
    handler makes itself are really made.

    --wait exits 1 if an event failed again or still waits. An interrupted replay prints the --after that continues it.

    \b
    oncehook replay 1042
    oncehook replay --failed --since 2h --dry-run
    oncehook replay --failed --rate 50/s --wait
    oncehook replay --source stripe --type 'invoice.*' --handled-by 9f3c2e1 --yes
    oncehook replay evt_1PqX7r --rehearse --app hooks:inbox
    """
    _check_options(failed=failed, status=status, wait=wait, timeout=timeout)
    state = State.FAILED.value if failed else status
    wanted = Filter(source=source, type=type_, object=object_, status=state, since=since, until=until, search=search)
    by_filter = wanted != Filter() or handled_by is not None
    if bool(names) == by_filter:
        raise click.UsageError("name receipts, or pick some with --failed, --source, --since … (not both, not neither)")
    configuration, inbox = configured(config)
    if rehearsed and (inbox is None or dry_run):
        raise click.UsageError("--rehearse runs your handlers: name them with --app module:inbox, without --dry-run")
    how = How(
        dry_run=dry_run,
        rehearse=rehearsed,
        yes=yes,
        as_json=as_json,
        actor=actor,
        rate=rate,
        wait=wait,
        timeout=timeout,
    )
    selection = Selection(wanted, handled_by=handled_by, after=after)
    sys.exit(run(_replay(names, selection, configuration, inbox, how)))


def _check_options(*, failed: bool, status: str | None, wait: bool, timeout: float | None) -> None:
    """Refuse options that contradict each other."""
    if failed and status not in (None, State.FAILED.value):
        raise click.UsageError(f"--failed and --status {status} exclude each other")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait")


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
            if not how.as_json:
                _tell_left(would)
            return await rehearse_all(store, inbox._runtime, selection, as_json=how.as_json)
        return await _replay_selected(store, selection, would, how)


async def _replay_selected(store: Store, selection: Selection, would: Replayed, how: How) -> int:
    """Replay, wait if that is wanted, and say what was done; the exit code."""
    done = Replayed()
    with replay_bar(would, how.rate) as advance:

        def progress(so_far: Replayed) -> None:
            nonlocal done
            done = so_far
            advance(so_far)

        try:
            done = await replay(store, selection, actor=how.actor, progress=progress, rate=how.rate)
        except asyncio.CancelledError:
            _tell_interrupted(done, would)
            raise
    now = await wait_until_handled(store, done, how.timeout) if how.wait and done.count else None
    _tell(done, now, how)
    return 0 if done.count and (now is None or now.handled == done.count) else 1


def _tell_interrupted(done: Replayed, would: Replayed) -> None:
    click.echo(f"\nstopped: replayed {done.count:,} of {would.count:,}, and those stay replayed.", err=True)
    click.echo(f"To go on with the rest, give the same command with --after {done.last}", err=True)


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


def _tell(done: Replayed, now: Outcomes | None, how: How) -> None:
    if how.as_json:
        print_json({**done.as_json(), **(now.as_json() if now else {})})
        return
    if done.count:
        click.echo(f"replayed {_listed(done)}" + (f": {outcomes_text(now)}" if now else ""))
    _tell_left(done)


def _tell_left(done: Replayed) -> None:
    for why, number in done.left.most_common():
        hint = ": `oncehook retry` runs a waiting retry now" if why == State.RETRYING else ""
        click.echo(f"left alone: {number:,} ({why}){hint}", err=True)


# -- looking first --------------------------------------------------------------------------------------------------


async def _list(store: Store, selection: Selection, would: Replayed, how: How) -> int:
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    first: list[Receipt] = []
    async for page in pages(store, selection):
        for receipt in [receipt for receipt, why in page if why is None]:
            if how.as_json:
                print_json(receipt.as_json())
            else:
                kind = receipt.source, receipt.type or "", receipt.status.value, shape(receipt.last_error)
                kinds.setdefault(kind, Counter())[receipt.last_error or ""] += 1
                first += [receipt] if len(first) < EXAMPLES else []
    if not how.as_json:
        _print_kinds(kinds, first)
        if first:
            click.echo(f"would replay {_listed(would)}; nothing was written")
        _tell_left(would)
    return 0 if would.count else 1


KINDS = (
    Column("events", right=True),
    Column("source"),
    Column("type", cuts=True),
    Column("status"),
    Column("error", cuts=True, colours="red"),
)


def _print_kinds(kinds: dict[tuple[str, ...], Counter[str]], first: list[Receipt]) -> None:
    """How many of which kind, and the first few; all of them where they are few."""
    total = sum(errors.total() for errors in kinds.values())
    if total > EXAMPLES:
        largest = sorted(kinds.items(), key=lambda kind: -kind[1].total())
        print_table(KINDS, [(f"{errors.total():,}", *kind[:-1], common(errors)) for kind, errors in largest])
        click.echo(f"\nThe first {len(first)} of {total:,} (--json lists all of them):")
    if first:
        print_events(first)
