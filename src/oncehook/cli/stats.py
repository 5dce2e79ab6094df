"""`oncehook stats`: where everything stands."""

import asyncio
import sys
from typing import Any

import click

from oncehook.cli.app import app_option
from oncehook.cli.events import COLOURS
from oncehook.cli.options import (
    Parsed,
    config_option,
    console,
    json_option,
    opened_store,
    print_json,
    printable,
    run,
)
from oncehook.cli.pause import pause_text
from oncehook.model.effect import EffectState, WaitingEffects
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import positive_duration
from oncehook.store.store import Store

NOOPS = {"effect": "effect_conflicts", "stale": "stale"}
OVERDUE = 60
"""Effects that are due for longer are told of: perhaps no process can perform them."""

AGES = ("lag_seconds", "oldest_unfinished_seconds")
STEPS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@click.command("stats")
@config_option
@app_option
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--every",
    type=Parsed("duration", positive_duration),
    default="2s",
    show_default=True,
    help="With --watch: how often.",
)
@json_option
def command(config: str | None, watch: bool, every: float, as_json: bool) -> None:
    """How many events each source has in which state, how many duplicates came, and how old the oldest are.

    `lag` is for how long the oldest event that is due has waited for a worker; `oldest` is the age of the oldest event
    that is not finished, whether it waits or a worker holds it. With --watch and --json each look is one line, with the
    time, the sources and the effects.

    \b
    oncehook stats
    oncehook stats --watch --every 5s
    oncehook stats --json | jq 'select(.oldest_unfinished_seconds > 60)'
    """
    try:
        run(_watch(config, every, as_json) if watch else _look_once(config, as_json))
    except KeyboardInterrupt:
        if not watch:
            raise


async def _look_once(config: str | None, as_json: bool) -> None:
    async with opened_store(config) as store:
        sources, effects = await _gather(store)
    if as_json:
        for row in [*sources, effects] if effects else sources:
            print_json(row)
    else:
        _print(sources, effects)


async def _watch(config: str | None, every: float, as_json: bool) -> None:
    """Each look takes the place of the last one on a terminal, and stands below it elsewhere."""
    async with opened_store(config) as store:
        while True:
            sources, effects = await _gather(store)
            at = rfc3339(await store.operations.now()) or ""
            if as_json:
                print_json({"at": at, "sources": sources, **effects})
            else:
                click.clear()  # does nothing where there is no terminal
                click.echo(f"{at[:19]}Z   every {every:g} s, until Ctrl-C")
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
        click.echo("nothing has arrived yet")


async def _gather(store: Store) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each source, and one about effects, empty if there are none."""
    pauses = await store.pauses.active()
    counts, lags, noops = await store.stats.counts(), await store.stats.lags(), await store.effects.noop_counts()
    states, waiting = await store.effects.counts(), await store.effects.waiting()
    unfinished = await store.alerts.measure("unfinished", {})
    sources: dict[str, dict[str, Any]] = {}
    for count in counts:
        of_source = sources.setdefault(count.source, _nothing(count.source))
        of_source[count.status] = count.receipts
        of_source["events"] += count.receipts
        of_source["last_received_at"] = max(of_source["last_received_at"] or "", count.last_received_at)
    for again in await store.stats.duplicate_counts():
        sources.setdefault(again.source, _nothing(again.source)).update(
            duplicates=again.duplicates, other_bodies=again.other_bodies
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
    for name, row in (await store.roster.unhandled()).items():
        if name in sources:
            sources[name]["unhandled"] = row.number
    for pause in pauses:
        sources.setdefault(pause.source, _nothing(pause.source)).update(
            paused_at=pause.paused_at, paused_until=pause.ends_at, paused_reason=pause.reason
        )
    return [sources[name] for name in sorted(sources)], _about_effects(states, waiting)


def _about_effects(states: dict[str, int], waiting: list[WaitingEffects]) -> dict[str, Any]:
    """Effects by state; and per function or topic those that wait, which show what no process has registered."""
    if not states:
        return {}
    names = ("kind", "target", "effects")
    lags = [{**{n: getattr(row, n) for n in names}, "lag_seconds": round(max(0.0, row.lag), 3)} for row in waiting]
    return {"effects": {state.value: states.get(state, 0) for state in EffectState}, "waiting_for": lags}


def _nothing(source: str) -> dict[str, Any]:
    states = {state.value: 0 for state in State}
    more = {
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
    return {"source": source, "events": 0, **states, **more}


def _print_table(sources: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("source", overflow="fold")
    for title in ("events", *State, "duplicates", "lag", "oldest"):
        table.add_column(str(title), justify="right", no_wrap=True)
    for row in [*sources, _total(sources)] if len(sources) > 1 else sources:
        cells = [Text(f"{row[state]:,}", style=COLOURS[state] if row[state] else "bright_black") for state in State]
        ages = [Text(told(row[name]), style="yellow" if row[name] > 60 else "") for name in AGES]
        table.add_row(Text(printable(row["source"])), f"{row['events']:,}", *cells, f"{row['duplicates']:,}", *ages)
    console().print(table)


def _print_unhandled(sources: list[dict[str, Any]]) -> None:
    for row in sources:
        if row["unhandled"]:
            name, number = printable(row["source"]), row["unhandled"]
            told_number = f"{number:,} events have" if number > 1 else "1 event has"
            click.echo(f"{name}: {told_number} no handler anywhere; see `oncehook events --unhandled --source {name}`")


def _print_paused(sources: list[dict[str, Any]]) -> None:
    for row in sources:
        if row["paused_at"]:
            name = printable(row["source"])
            more = pause_text(row["paused_until"], row["paused_reason"])
            since = f"{name} is paused since {row['paused_at'][:19]}Z{more}"
            click.echo(f"{since}: its events wait for `oncehook resume {name}`")


def _print_noops(sources: list[dict[str, Any]]) -> None:
    for name, meaning in (("effect_conflicts", "effects asked for again, not repeated"), ("stale", "stale events")):
        found = [f"{row[name]:,} of {printable(row['source'])}" for row in sources if row[name]]
        if found:
            click.echo(f"{meaning}: {', '.join(found)}")


def _print_effects(effects: dict[str, Any]) -> None:
    if not effects:
        return
    states = ", ".join(f"{number:,} {state}" for state, number in effects["effects"].items() if number)
    click.echo(f"effects: {states}")
    for row in effects["waiting_for"]:
        if row["lag_seconds"] > OVERDUE:
            told_lag = f"{row['effects']:,} due, the oldest for {told(row['lag_seconds'])}"
            click.echo(f"  {row['kind']} {printable(row['target'])}: {told_lag}; is it registered in a running worker?")


def _total(sources: list[dict[str, Any]]) -> dict[str, Any]:
    added = {name: sum(row[name] for row in sources) for name in ("events", *State, "duplicates")}
    return {"source": "all", **added} | {name: max(row[name] for row in sources) for name in AGES}


def told(seconds: float) -> str:
    """A duration in its largest unit: 3d, 45m, 12s; nothing waits: –."""
    if seconds <= 0:
        return "–"
    return next((f"{seconds / size:.0f}{unit}" for size, unit in STEPS if seconds >= size), "<1s")
