"""`oncehook stats`: counts by source and status, with lag and age."""

import asyncio
import sys
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
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import positive_duration
from oncehook.store.store import Store

NOOPS = {"effect": "effect_conflicts", "stale": "stale"}
OVERDUE = 60
"""Seconds after which due effects are listed: perhaps no running process can run them."""

FULL_WIDTH = 104
"""Terminal columns of the whole table. A narrower terminal shows only the statuses that some event has."""

AGES = ("lag_seconds", "oldest_unfinished_seconds")
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
    event, whether it is waiting or a worker holds it. With --watch and --json, each refresh prints one line with the
    time, the sources and the effects.

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
        sources, effects = await _gather(store)
    if as_json:
        for row in [*sources, effects] if effects else sources:
            print_json(row)
    else:
        _print(sources, effects)


async def _watch(config: str | None, every: float, as_json: bool) -> None:
    """Refresh: a terminal is cleared first, and other outputs get one report after the other."""
    async with opened_store(config) as store:
        while True:
            sources, effects = await _gather(store)
            at = rfc3339(await store.operations.now()) or ""
            if as_json:
                print_json({"at": at, "sources": sources, **effects})
            else:
                click.clear()  # does nothing without a terminal
                click.echo(f"{at[:19]}Z   refreshed every {every:g} s; Ctrl-C stops it")
                _print(sources, effects)
            sys.stdout.flush()
            await asyncio.sleep(every)


def _print(sources: list[dict[str, Any]], effects: dict[str, Any]) -> None:
    if sources:
        _print_table(sources)
        _print_unhandled(sources)
        _print_paused(sources)
        _print_noops(sources)
        _print_effects(effects)
    else:
        click.echo("no events yet")


async def _gather(store: Store) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row per source, and one row about effects, which is empty if there are none."""
    pauses = await store.pauses.active()
    counts, lags, noops = await store.stats.counts(), await store.stats.lags(), await store.effects.noop_counts()
    states, waiting = await store.effects.counts(), await store.effects.waiting()
    unfinished = await store.alerts.measure("oldest_unfinished", {})
    sources: dict[str, dict[str, Any]] = {}
    for count in counts:
        row = sources.setdefault(count.source, _empty_row(count.source))
        row[count.status] = count.receipts
        row["events"] += count.receipts
        row["last_received_at"] = max(row["last_received_at"] or "", count.last_received_at)
    for duplicates in await store.stats.duplicate_counts():
        sources.setdefault(duplicates.source, _empty_row(duplicates.source)).update(
            duplicates=duplicates.duplicates, other_bodies=duplicates.other_bodies
        )
    for name, lag in lags.items():
        if name in sources:
            sources[name]["lag_seconds"] = round(max(0.0, lag), 3)
    for age in unfinished:
        if age.source in sources:
            sources[age.source]["oldest_unfinished_seconds"] = round(max(0.0, age.value), 3)
    for noop in noops:
        if noop.source in sources:
            sources[noop.source][NOOPS[noop.reason]] = noop.noops
    for name, unhandled in (await store.roster.unhandled()).items():
        if name in sources:
            sources[name]["unhandled"] = unhandled.number
    for pause in pauses:
        sources.setdefault(pause.source, _empty_row(pause.source)).update(
            paused_at=pause.paused_at, paused_until=pause.ends_at, paused_reason=pause.reason
        )
    return [sources[name] for name in sorted(sources)], _effects_row(states, waiting)


def _effects_row(states: dict[str, int], waiting: list[WaitingEffects]) -> dict[str, Any]:
    """Effects by status, and waiting effects by function or topic, which may not be registered in any process."""
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
        "paused_at": None,
        "paused_until": None,
        "paused_reason": None,
    }
    return {"source": source, "events": 0, **states, **figures}


def _print_table(sources: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    narrow = is_narrow(FULL_WIDTH)
    states = [state for state in State if not narrow or any(row[state] for row in sources)]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1))
    table.add_column("source", no_wrap=narrow, overflow="ellipsis" if narrow else "fold")
    for title in ("events", *states, "dup" if narrow else "duplicates", "lag", "oldest"):
        table.add_column(str(title), justify="right", no_wrap=True)
    for row in [*sources, _total(sources)] if len(sources) > 1 else sources:
        cells = [Text(f"{row[state]:,}", style=COLORS[state] if row[state] else "bright_black") for state in states]
        ages = [Text(duration_text(row[name]), style="yellow" if row[name] > 60 else "") for name in AGES]
        table.add_row(Text(printable(row["source"])), f"{row['events']:,}", *cells, f"{row['duplicates']:,}", *ages)
    console().print(table)


def _print_unhandled(sources: list[dict[str, Any]]) -> None:
    for row in sources:
        if row["unhandled"]:
            name, number = printable(row["source"]), row["unhandled"]
            events = f"{number:,} events have" if number > 1 else "1 event has"
            hint = f"list them with `oncehook events --unhandled --source {name}`"
            click.echo(f"{name}: {events} no handler in any running process; {hint}")


def _print_paused(sources: list[dict[str, Any]]) -> None:
    for row in sources:
        if row["paused_at"]:
            name = printable(row["source"])
            details = pause_text(row["paused_until"], row["paused_reason"])
            since = f"{name} has been paused since {row['paused_at'][:19]}Z{details}"
            click.echo(f"{since}; `oncehook resume {name}` ends the pause")


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
