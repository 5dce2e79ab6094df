"""`oncehook prune`: what is past its window and its retention goes, or is counted."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, console, json_option, opened, print_json, run
from oncehook.config.configuration import Configuration
from oncehook.config.settings import Horizon, Settings
from oncehook.model.values import as_duration
from oncehook.operations.prune import (
    MARGIN,
    Progress,
    horizon,
)
from oncehook.providers import definition as providers
from oncehook.runtime.pruning import prune_all


@click.command("prune")
@click.argument("app", required=False)
@config_option
@app_option
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option(
    "--removed-sources",
    is_flag=True,
    help="Also sources that are not configured any more, by the global settings. They are left alone otherwise.",
)
@json_option
def command(app: str | None, config: str | None, dry_run: bool, removed_sources: bool, as_json: bool) -> None:
    """Remove finished receipts that are older than their source's dedupe window, and payloads older than its retention.

    `serve` does so by itself, once an hour. Exits 0 also when there is nothing to remove, and 1 if another process is
    pruning. Unfinished events and dead letters never go. Sources that code adds are in
    APP, module:inbox, which is `app` in oncehook.toml by default; without it the configuration's alone are pruned.

    \b
    oncehook prune --dry-run
    oncehook prune hooks:inbox
    """
    configuration, _ = configured(config, app)
    horizons = [
        horizon(name, source, providers.find(source.provider or name, configuration.providers), configuration.settings)
        for name, source in configuration.sources.items()
    ]
    sys.exit(run(_prune(configuration, horizons, dry_run, removed_sources, as_json)))


@dataclass
class Row:
    """What goes, or would go, of a source."""

    source: str
    receipts: int
    payloads: int
    horizon: Horizon | None

    def as_json(self) -> dict[str, Any]:
        kept = self.horizon
        return {
            "source": self.source,
            "receipts": self.receipts,
            "payloads": self.payloads,
            "dedupe_window": as_duration(kept.receipts) if kept else None,
            "payload_retention": as_duration(kept.payloads) if kept else None,
        }


async def _prune(
    configuration: Configuration, horizons: list[Horizon], dry_run: bool, removed_sources: bool, as_json: bool
) -> int:
    async with opened(configuration) as store:
        others = {row.source for row in await store.stats.counts()} - {horizon.source for horizon in horizons}
        if removed_sources:
            horizons = horizons + [_removed(source, configuration.settings) for source in sorted(others)]
            others = set()
        with _progress() as progress:
            done = await prune_all(store, configuration.settings, horizons, dry_run=dry_run, progress=progress)
    if done is None:
        click.echo("oncehook: another process is pruning right now", err=True)
        return 1
    if done.effects and not as_json:
        click.echo(f"removed {done.effects:,} effects that were done before effect_retention")
    if done.email:
        verb = "would remove" if dry_run else "removed"
        click.echo(f"{verb} {done.email:,} email facts; suppressions stay", err=True)
    rows = [Row(h.source, done.receipts[h.source], done.payloads[h.source], h) for h in horizons]
    rows += [Row(f"({day}, whole)", 0, 0, None) for day in done.days]
    _print(rows, dry_run, as_json)
    if others and not as_json:
        click.echo(
            f"left alone: {', '.join(sorted(others))} (not configured here; name your app, or --removed-sources)",
            err=True,
        )
    return 0


def _removed(source: str, settings: Settings) -> Horizon:
    """The horizon of a source of which nothing else is known: that of the provider which needs the longest."""
    known = [providers.built_in(name) for name in providers.built_in_names()]
    needed = max(provider.horizon or 0.0 for provider in known) + MARGIN
    window = max(float(settings.dedupe_window), needed)
    return Horizon(source, window, min(float(settings.payload_retention), window))


def _print(rows: list[Row], dry_run: bool, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row.as_json())
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("source")
    for title in ("window", "retention", "receipts", "payloads"):
        table.add_column(title, justify="right")
    for row in rows:
        shown = row.as_json()
        numbers = (f"{row.receipts:,}", f"{row.payloads:,}") if row.horizon else ("", "")
        table.add_row(row.source, shown["dedupe_window"], shown["payload_retention"], *numbers)
    if rows:
        console().print(table)
    if dry_run:
        click.echo("nothing was removed: this is what would go")
    elif not any(row.receipts or row.payloads or not row.horizon for row in rows):
        click.echo("nothing to remove")


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """How far it is, on standard error, where a person sees it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("pruning") as status:
        yield lambda done: status.update(
            f"{len(done.days)} whole days, {done.payloads.total():,} payloads, {done.receipts.total():,} receipts"
        )
