"""`oncehook replay`: run the handlers of finished events again, or rehearse them."""

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.events import print_events
from oncehook.cli.options import ParsedOption, TimeOption, config_option, json_option, opened, print_json, run
from oncehook.cli.progress import outcomes_text, replay_bar, wait_until_handled
from oncehook.cli.rehearsal import rehearse_all
from oncehook.cli.show import resolve_all
from oncehook.cli.tables import Column, print_table
from oncehook.config.configuration import Configuration
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.states import State
from oncehook.model.values import positive_duration, rate
from oncehook.operations.consumers import check_consumer
from oncehook.operations.dead_letters import common_error, error_pattern
from oncehook.operations.payloads import search_note
from oncehook.operations.rehearse import DIRECT_CALLS_NOTE
from oncehook.operations.replay import REPLAYABLE, Outcomes, Replayed, pages, preview, replay, with_horizon
from oncehook.operations.selection import is_one_selection
from oncehook.store.rows import Selection
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.inbox import Inbox

STATES = sorted(state.value for state in REPLAYABLE)
MAX_EXAMPLES = 10
"""A dry run lists up to this many events."""


@dataclass(kw_only=True)
class ReplayOptions:
    """What to do with the selected events."""

    dry_run: bool
    rehearse: bool
    yes: bool
    as_json: bool
    actor: str | None
    rate: float | None
    wait: bool
    timeout: float | None


HELP = """Run the handlers of finished events again: of dead letters, processed events and ignored events. Exits 1 if no
event was replayed.

RECEIPT is the number of a receipt, or the event id of the sender, which selects the receipts of all consumers.
--consumer selects those of one consumer. Alternatively, options select events; the command asks for confirmation if
they select more than one. It skips events that are waiting or in progress, and events
whose payload was pruned. Every replay is recorded in the audit log.

--rehearse prints the statements that the handlers would run through tx, and rolls them back. Other calls that a
handler makes, such as HTTP requests, are really made.

With --wait, the command exits 1 if an event failed again or is still waiting. An interrupted replay prints the
--after option that continues it.

\b
oncehook replay 1042
oncehook replay --failed --since 2h --dry-run
oncehook replay --failed --rate 50/s --wait
oncehook replay --failed --consumer ledger
oncehook replay --source stripe --type 'invoice.*' --handled-by 9f3c2e1 --yes
oncehook replay evt_1PqX7r --rehearse --app hooks:inbox
"""


@click.command("replay", help=HELP)
@click.argument("names", metavar="[RECEIPT]...", nargs=-1)
@config_option
@click.option("--failed", is_flag=True, help="Only dead letters; the same as --status failed.")
@click.option("--source", help="Only events of this source.")
@click.option("--tenant", help="Only events of this tenant.")
@click.option("--consumer", help="Only receipts of this consumer.")
@click.option("--type", "type_", help="Only events of this type: a pattern with * and ?, or a dotted prefix.")
@click.option("--object", "object_", help="Only events about the object with this id.")
@click.option("--status", type=click.Choice(STATES), help="Only events with this status.")
@click.option("--since", type=TimeOption(), help="Only events received since then: 2h, 7d or 2026-11-15T03:00:00Z.")
@click.option("--until", type=TimeOption(), help="Only events received before then.")
@click.option("--search", help="Only events with this id, with this object id, or with this text in the payload.")
@click.option("--handled-by", metavar="VERSION", help="Only events that this version of your code attempted.")
@click.option("--after", type=int, default=0, metavar="RECEIPT", help="Only receipts with a higher number.")
@click.option(
    "--rate",
    type=ParsedOption("rate", rate),
    metavar="N/s",
    help="Maximum rate of replayed events, such as 50/s or 100/m.",
)
@click.option("--wait", is_flag=True, help="Wait until the events are handled, and print how many failed again.")
@click.option(
    "--timeout",
    type=ParsedOption("duration", positive_duration),
    metavar="10m",
    help="With --wait: maximum time to wait.",
)
@click.option("--dry-run", is_flag=True, help="List the events that would be replayed, and change nothing.")
@click.option(
    "--rehearse", "rehearsed", is_flag=True, help="Run the handlers of --app in transactions that are rolled back."
)
@app_option
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
def command(
    names: tuple[str, ...],
    config: str | None,
    failed: bool,
    source: str | None,
    tenant: str | None,
    consumer: str | None,
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
    _check_options(failed=failed, status=status, wait=wait, timeout=timeout)
    state = State.FAILED.value if failed else status
    event_filter = Filter(
        source=source,
        tenant=tenant,
        consumer=consumer,
        type=type_,
        object=object_,
        status=state,
        since=since,
        until=until,
        search=search,
    )
    if not is_one_selection(names, event_filter, handled_by):
        raise click.UsageError(
            "pass receipts, or select events with options such as --failed, --source or --since, but not both"
        )
    configuration, inbox = configured(config)
    if rehearsed and (inbox is None or dry_run):
        raise click.UsageError("--rehearse needs your handlers: add --app module:inbox, and leave out --dry-run")
    options = ReplayOptions(
        dry_run=dry_run,
        rehearse=rehearsed,
        yes=yes,
        as_json=as_json,
        actor=actor,
        rate=rate,
        wait=wait,
        timeout=timeout,
    )
    selection = Selection(event_filter, handled_by=handled_by, after=after)
    sys.exit(run(_replay(names, selection, configuration, inbox, options)))


def _check_options(*, failed: bool, status: str | None, wait: bool, timeout: float | None) -> None:
    """Fail if options contradict each other."""
    if failed and status not in (None, State.FAILED.value):
        raise click.UsageError(f"--failed and --status {status} cannot be combined")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")


async def _replay(
    names: tuple[str, ...],
    selection: Selection,
    configuration: Configuration,
    inbox: "Inbox | None",
    options: ReplayOptions,
) -> int:
    async with opened(configuration) as store:
        if names:
            receipts = await resolve_all(store, names)
            if not receipts:
                return 1
            selection = replace(selection, receipts=receipts)
        note = await search_note(store, selection.filter, configuration.sources)
        if note is not None:
            click.echo(note, err=True)
        selection = await with_horizon(store, selection)
        planned = await preview(store, selection)
        if not planned.matched:
            if selection.filter.consumer is not None:
                await check_consumer(store, selection.filter.consumer)
            click.echo("no event matches", err=True)
            return 1
        if options.dry_run:
            return await _list(store, selection, planned, options)
        if not names and not options.yes and planned.count > 1:
            _confirm(planned, options)
        if options.rehearse:
            assert inbox is not None, "--rehearse needs an app"
            if not options.as_json:
                _print_skipped(planned)
            return await rehearse_all(store, inbox._runtime, selection, as_json=options.as_json)
        return await _replay_selected(store, selection, planned, options)


async def _replay_selected(store: Store, selection: Selection, planned: Replayed, options: ReplayOptions) -> int:
    """Replay, wait with --wait, and print the result. Returns the exit code."""
    done = Replayed()
    with replay_bar(planned, options.rate) as advance:

        def progress(so_far: Replayed) -> None:
            nonlocal done
            done = so_far
            advance(so_far)

        try:
            done = await replay(store, selection, actor=options.actor, progress=progress, rate=options.rate)
        except asyncio.CancelledError:
            _print_interrupted(done, planned)
            raise
    outcomes = await wait_until_handled(store, done, options.timeout) if options.wait and done.count else None
    _print_result(done, outcomes, options)
    return 0 if done.count and (outcomes is None or outcomes.handled == done.count) else 1


def _print_interrupted(done: Replayed, planned: Replayed) -> None:
    click.echo(f"\nstopped after {done.count:,} of {planned.count:,} events, which stay replayed.", err=True)
    click.echo(f"To continue, run the same command with --after {done.last}", err=True)


def _confirm(planned: Replayed, options: ReplayOptions) -> None:
    verb = "rehearse" if options.rehearse else "replay"
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {verb} {_count_text(planned)}: confirm with --yes, or list them with --dry-run"
        )
    if options.rehearse:
        click.echo(DIRECT_CALLS_NOTE, err=True)
    click.confirm(f"{verb.capitalize()} {_count_text(planned)}?", abort=True, err=True)


def _count_text(events: Replayed) -> str:
    """1,204 events (1,200 processed, 4 failed)"""
    states = ", ".join(f"{number:,} {state}" for state, number in events.replayed.most_common())
    return f"{events.count:,} event{'s' * (events.count != 1)}" + (f" ({states})" if states else "")


def _print_result(done: Replayed, outcomes: Outcomes | None, options: ReplayOptions) -> None:
    if options.as_json:
        print_json({**done.as_json(), **(outcomes.as_json() if outcomes else {})})
        return
    if done.count:
        click.echo(f"replayed {_count_text(done)}" + (f": {outcomes_text(outcomes)}" if outcomes else ""))
    _print_skipped(done)


def _print_skipped(done: Replayed) -> None:
    for why, number in done.left.most_common():
        hint = ": to run a waiting retry now, use `oncehook retry`" if why == State.RETRYING else ""
        click.echo(f"skipped: {number:,} ({why}){hint}", err=True)


# -- dry run --------------------------------------------------------------------------------------------------------


async def _list(store: Store, selection: Selection, planned: Replayed, options: ReplayOptions) -> int:
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    first: list[Receipt] = []
    async for page in pages(store, selection):
        for receipt in [receipt for receipt, why in page if why is None]:
            if options.as_json:
                print_json(receipt.as_json())
            else:
                kind = receipt.source, receipt.type or "", receipt.status.value, error_pattern(receipt.last_error)
                kinds.setdefault(kind, Counter())[receipt.last_error or ""] += 1
                first += [receipt] if len(first) < MAX_EXAMPLES else []
    if not options.as_json:
        _print_kinds(kinds, first)
        if first:
            click.echo(f"would replay {_count_text(planned)}; nothing was changed")
        _print_skipped(planned)
    return 0 if planned.count else 1


KINDS = (
    Column("events", right=True),
    Column("source"),
    Column("type", truncates=True),
    Column("status"),
    Column("error", truncates=True, colors="red"),
)


def _print_kinds(kinds: dict[tuple[str, ...], Counter[str]], first: list[Receipt]) -> None:
    """Print the number of events of each kind, then the first events. If there are few, print only the events."""
    total = sum(errors.total() for errors in kinds.values())
    if total > MAX_EXAMPLES:
        largest = sorted(kinds.items(), key=lambda kind: -kind[1].total())
        print_table(KINDS, [(f"{errors.total():,}", *kind[:-1], common_error(errors)) for kind, errors in largest])
        click.echo(f"\nThe first {len(first)} of {total:,} (--json lists all):")
    if first:
        print_events(first)
