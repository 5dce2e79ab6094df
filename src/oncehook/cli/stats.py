"""`oncehook stats`: counts by source and status, with lag and age."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.events import COLORS
from oncehook.cli.options import (
    ParsedOption,
    config_option,
    console,
    json_option,
    opened_store,
    print_json,
    printable,
    run,
)
from oncehook.cli.pause import pause_text
from oncehook.cli.tables import is_narrow
from oncehook.model.effect import EffectState, WaitingEffects
from oncehook.model.event import MAIN
from oncehook.model.rows import Pause
from oncehook.model.states import State
from oncehook.model.statistics import ReceiptCount
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import positive_duration
from oncehook.operations.work import Work, read_open_work
from oncehook.store.store import Store

NOOPS = {"effect": "effect_conflicts", "stale": "stale"}
OVERDUE = 60
"""Seconds after which due effects are listed: perhaps no running process can run them."""

FULL_WIDTH = 104
"""Terminal columns of the whole table. A narrower terminal shows only the statuses that some event has."""

AGES = ("lag_seconds", "oldest_unfinished_seconds")
NOT_PAUSED = {"paused_at": None, "paused_until": None, "paused_reason": None}
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@click.command("stats")
@config_option
@app_option
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--every",
    type=ParsedOption("duration", positive_duration),
    default="2s",
    show_default=True,
    help="With --watch: time between refreshes.",
)
@json_option
def command(config: str | None, watch: bool, every: float, as_json: bool) -> None:
    """Print for each source the number of events by status, the number of duplicates, the lag and the age of the oldest
    unfinished event.

    `lag` is the time that the oldest due event has waited for a worker. `oldest` is the age of the oldest unfinished
    event, whether it is waiting or a worker holds it. If there are consumers besides `main`, a second table has a row
    for each consumer; the statuses of the sources are then those of `main`. With --watch and --json, each refresh
    prints one line with the time, the sources, the consumers and the effects.

    \b
    oncehook stats
    oncehook stats --watch --every 5s
    oncehook stats --json | jq 'select(.oldest_unfinished_seconds > 60)'
    """
    try:
        run(_watch(config, every, as_json) if watch else _print_once(config, as_json))
    except KeyboardInterrupt:
        if not watch:
            raise


async def _print_once(config: str | None, as_json: bool) -> None:
    async with opened_store(config) as store:
        report = await _gather(store)
    if as_json:
        for row in [*report.sources, *report.consumers, *filter(None, [report.effects])]:
            print_json(row)
    else:
        _print(report)


async def _watch(config: str | None, every: float, as_json: bool) -> None:
    """Refresh: a terminal is cleared first, and other outputs get one report after the other."""
    async with opened_store(config) as store:
        while True:
            report = await _gather(store)
            at = rfc3339(await store.operations.now()) or ""
            if as_json:
                consumers = {"consumers": report.consumers} if report.consumers else {}
                print_json({"at": at, "sources": report.sources, **consumers, **report.effects})
            else:
                click.clear()  # does nothing without a terminal
                click.echo(f"{at[:19]}Z   refreshed every {every:g} s; Ctrl-C stops it")
                _print(report)
            sys.stdout.flush()
            await asyncio.sleep(every)


@dataclass(frozen=True, slots=True)
class Report:
    """One row per source, one per consumer unless there is only `main`, and the effects if there are any."""

    sources: list[dict[str, Any]]
    consumers: list[dict[str, Any]]
    effects: dict[str, Any]


def _print(report: Report) -> None:
    if report.sources:
        _print_table("source", report.sources)
        if report.consumers:
            click.echo()
            _print_table("consumer", report.consumers)
        _print_unhandled(report.sources)
        _print_paused(report.sources, "source")
        _print_paused(report.consumers, "consumer")
        _print_noops(report.sources)
        _print_effects(report.effects)
    else:
        click.echo("no events yet")


async def _gather(store: Store) -> Report:
    counts, pauses = await store.stats.counts(), await store.pauses.active()
    work = await read_open_work(store)
    sources: dict[str, dict[str, Any]] = {}
    for count in counts:
        row = sources.setdefault(count.source, _empty_row(count.source))
        row["last_received_at"] = max(row["last_received_at"] or "", count.last_received_at)
        if count.consumer == MAIN:
            _add_count(row, count)
    for duplicates in await store.stats.duplicate_counts():
        sources.setdefault(duplicates.source, _empty_row(duplicates.source)).update(
            duplicates=duplicates.duplicates, other_bodies=duplicates.other_bodies
        )
    for noop in await store.effects.noop_counts():
        if noop.source in sources:
            sources[noop.source][NOOPS[noop.reason]] = noop.noops
    for name, row in sources.items():
        row.update(_open_work(work, source=name))
    for pause in pauses:
        if pause.source:
            sources.setdefault(pause.source, _empty_row(pause.source)).update(_pause_columns(pause))
    effects = _effects_row(await store.effects.counts(), await store.effects.waiting())
    return Report([sources[name] for name in sorted(sources)], _consumer_rows(counts, work, pauses), effects)


def _consumer_rows(counts: list[ReceiptCount], work: Work, pauses: list[Pause]) -> list[dict[str, Any]]:
    """One row per consumer, `main` first; none if there is only `main`."""
    rows: dict[str, dict[str, Any]] = {}
    for count in counts:
        _add_count(rows.setdefault(count.consumer, _empty_consumer_row(count.consumer)), count)
    for pause in pauses:
        if pause.consumer:
            row = rows.setdefault(pause.consumer, _empty_consumer_row(pause.consumer))
            row.update(_pause_columns(pause))
    for name, row in rows.items():
        row.update(_open_work(work, consumer=name))
    return [rows[name] for name in sorted(rows, key=lambda name: (name != MAIN, name))] if rows.keys() - {MAIN} else []


def _add_count(row: dict[str, Any], count: ReceiptCount) -> None:
    row[count.status] += count.receipts
    row["events"] += count.receipts


def _open_work(work: Work, **part: str) -> dict[str, Any]:
    figures = work.figures(**part)
    return {name: figures[name] for name in (*AGES, "unhandled")}


def _pause_columns(pause: Pause) -> dict[str, Any]:
    return {"paused_at": pause.paused_at, "paused_until": pause.ends_at, "paused_reason": pause.reason}


def _effects_row(states: dict[str, int], waiting: list[WaitingEffects]) -> dict[str, Any]:
    """Effects by status, and waiting effects by function, topic or task, which may not be registered in any process."""
    if not states:
        return {}
    names = ("kind", "target", "effects")
    lags = [{**{n: getattr(row, n) for n in names}, "lag_seconds": round(max(0.0, row.lag), 3)} for row in waiting]
    return {"effects": {state.value: states.get(state, 0) for state in EffectState}, "waiting_for": lags}


def _empty_row(source: str) -> dict[str, Any]:
    states = {state.value: 0 for state in State}
    figures = {
        "duplicates": 0,
        "other_bodies": 0,
        "effect_conflicts": 0,
        "stale": 0,
        "lag_seconds": 0.0,
        "oldest_unfinished_seconds": 0.0,
        "last_received_at": None,
        "unhandled": 0,
        **NOT_PAUSED,
    }
    return {"source": source, "events": 0, **states, **figures}


def _empty_consumer_row(consumer: str) -> dict[str, Any]:
    states = {state.value: 0 for state in State}
    figures = {"lag_seconds": 0.0, "oldest_unfinished_seconds": 0.0, "unhandled": 0}
    return {"consumer": consumer, "events": 0, **states, **figures, **NOT_PAUSED}


def _print_table(kind: str, rows: list[dict[str, Any]]) -> None:
    """Print a table of sources or of consumers. Duplicates belong to a source alone."""
    from rich.table import Table
    from rich.text import Text

    narrow, is_source = is_narrow(FULL_WIDTH), kind == "source"
    states = [state for state in State if not narrow or any(row[state] for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1))
    table.add_column(kind, no_wrap=narrow, overflow="ellipsis" if narrow else "fold")
    for title in ("events", *states, *["dup" if narrow else "duplicates"] * is_source, "lag", "oldest"):
        table.add_column(str(title), justify="right", no_wrap=True)
    for row in [*rows, _total(rows)] if is_source and len(rows) > 1 else rows:
        cells = [Text(f"{row[state]:,}", style=COLORS[state] if row[state] else "bright_black") for state in states]
        ages = [Text(duration_text(row[name]), style="yellow" if row[name] > 60 else "") for name in AGES]
        duplicates = [f"{row['duplicates']:,}"] if is_source else []
        table.add_row(Text(printable(row[kind])), f"{row['events']:,}", *cells, *duplicates, *ages)
    console().print(table)


def _print_unhandled(sources: list[dict[str, Any]]) -> None:
    for row in sources:
        if row["unhandled"]:
            name, number = printable(row["source"]), row["unhandled"]
            events = f"{number:,} events have" if number > 1 else "1 event has"
            hint = f"list them with `oncehook events --unhandled --source {name}`"
            click.echo(f"{name}: {events} no handler in any running process; {hint}")


def _print_paused(rows: list[dict[str, Any]], kind: str) -> None:
    for row in rows:
        if row["paused_at"]:
            name, option = printable(row[kind]), "--consumer " if kind == "consumer" else ""
            details = pause_text(row["paused_until"], row["paused_reason"])
            since = f"{name} has been paused since {row['paused_at'][:19]}Z{details}"
            click.echo(f"{since}; `oncehook resume {option}{name}` ends the pause")


def _print_noops(sources: list[dict[str, Any]]) -> None:
    for name, meaning in (("effect_conflicts", "effects requested again, not repeated"), ("stale", "stale events")):
        counts = [f"{row[name]:,} of {printable(row['source'])}" for row in sources if row[name]]
        if counts:
            click.echo(f"{meaning}: {', '.join(counts)}")


def _print_effects(effects: dict[str, Any]) -> None:
    if not effects:
        return
    states = ", ".join(f"{number:,} {state}" for state, number in effects["effects"].items() if number)
    click.echo(f"effects: {states}")
    for row in effects["waiting_for"]:
        if row["lag_seconds"] > OVERDUE:
            due = f"{row['effects']:,} due, the oldest for {duration_text(row['lag_seconds'])}"
            click.echo(f"  {row['kind']} {printable(row['target'])}: {due}; is it registered in a running worker?")


def _total(sources: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(row[name] for row in sources) for name in ("events", *State, "duplicates")}
    return {"source": "all", **sums} | {name: max(row[name] for row in sources) for name in AGES}


def duration_text(seconds: float) -> str:
    """A duration in its largest unit, such as 3d, 45m or 12s; – for zero."""
    if seconds <= 0:
        return "–"
    return next((f"{seconds / size:.0f}{unit}" for size, unit in UNITS if seconds >= size), "<1s")
