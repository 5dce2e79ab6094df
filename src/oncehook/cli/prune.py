"""`oncehook prune`: delete receipts and payloads that are past their retention."""

import sys
from dataclasses import dataclass
from typing import Any

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, console, json_option, opened, print_json, run
from oncehook.cli.progress import status_line
from oncehook.config.configuration import Configuration
from oncehook.config.settings import Horizon, Settings
from oncehook.model.values import as_duration
from oncehook.operations.prune import (
    MARGIN,
    Pruned,
    horizon,
)
from oncehook.providers import definition as providers
from oncehook.runtime.managed_sources import managed_horizons
from oncehook.runtime.pruning import prune_all
from oncehook.store.retention import PRUNE
from oncehook.store.store import Store


@click.command("prune")
@click.argument("app", required=False)
@config_option
@app_option
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@click.option(
    "--removed-sources",
    is_flag=True,
    help="Also prune sources that are no longer configured, using the global settings.",
)
@json_option
def command(app: str | None, config: str | None, dry_run: bool, removed_sources: bool, as_json: bool) -> None:
    """Delete finished receipts older than the dedupe window of their source, and payloads older than its retention.

    `oncehook serve` does this once an hour. Unfinished events and dead letters are never deleted. Exits 0 even if there
    is nothing to delete, and 1 if another process is pruning.

    APP is module:inbox; the default is `app` in oncehook.toml. It is needed for sources that your code adds.

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
class PrunedSource:
    """What was deleted, or would be deleted, of one source."""

    source: str
    receipts: int
    payloads: int
    horizon: Horizon | None

    def as_json(self) -> dict[str, Any]:
        horizon = self.horizon
        return {
            "source": self.source,
            "receipts": self.receipts,
            "payloads": self.payloads,
            "dedupe_window": as_duration(horizon.receipts) if horizon else None,
            "payload_retention": as_duration(horizon.payloads) if horizon else None,
        }


async def _prune(
    configuration: Configuration, horizons: list[Horizon], dry_run: bool, removed_sources: bool, as_json: bool
) -> int:
    async with opened(configuration) as store:
        managed = await managed_horizons(store, configuration.providers, configuration.settings)
        horizons = horizons + [row for row in managed if row.source not in configuration.sources]
        unconfigured = {row.source for row in await store.stats.counts()} - {horizon.source for horizon in horizons}
        if removed_sources:
            horizons = horizons + [_removed_horizon(source, configuration.settings) for source in sorted(unconfigured)]
            unconfigured = set()
        with status_line("pruning") as show:
            done = await prune_all(
                store,
                configuration.settings,
                horizons,
                dry_run=dry_run,
                progress=lambda done: show(_progress_text(done)),
            )
        if done is None:
            click.echo(f"oncehook: another process is pruning{await _pruner(store)}", err=True)
            return 1
    if done.effects and not as_json:
        click.echo(f"deleted {done.effects:,} completed effects older than effect_retention")
    if done.objects and not as_json:
        click.echo(f"deleted {done.objects:,} payload objects")
    if done.email:
        verb = "would delete" if dry_run else "deleted"
        click.echo(f"{verb} {done.email:,} email events; suppressions are kept", err=True)
    rows = [PrunedSource(h.source, done.receipts[h.source], done.payloads[h.source], h) for h in horizons]
    rows += [PrunedSource(f"({day}, whole day)", 0, 0, None) for day in done.days]
    _print(rows, dry_run, as_json)
    if unconfigured and not as_json:
        click.echo(
            f"skipped: {', '.join(sorted(unconfigured))} (not configured: pass your app, or add --removed-sources)",
            err=True,
        )
    return 0


async def _pruner(store: Store) -> str:
    """Say which process prunes, and how long it keeps others from pruning if it is killed."""
    for row in await store.leadership.leaders():
        if row.task == PRUNE and row.is_held:
            return f": {row.leader}. If that process is gone, try again after {row.expires_at[:19]}Z"
    return ""


def _removed_horizon(source: str, settings: Settings) -> Horizon:
    """The horizon of a source that is no longer configured: that of the provider with the longest retries."""
    known = [providers.built_in(name) for name in providers.built_in_names()]
    needed = max(provider.horizon or 0.0 for provider in known) + MARGIN
    window = max(float(settings.dedupe_window), needed)
    return Horizon(source, window, min(float(settings.payload_retention), window))


def _print(rows: list[PrunedSource], dry_run: bool, as_json: bool) -> None:
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
        fields = row.as_json()
        numbers = (f"{row.receipts:,}", f"{row.payloads:,}") if row.horizon else ("", "")
        table.add_row(row.source, fields["dedupe_window"], fields["payload_retention"], *numbers)
    if rows:
        console().print(table)
    if dry_run:
        click.echo("dry run: nothing was deleted")
    elif not any(row.receipts or row.payloads or not row.horizon for row in rows):
        click.echo("nothing to delete")


def _progress_text(done: Pruned) -> str:
    return f"{len(done.days)} whole days, {done.payloads.total():,} payloads, {done.receipts.total():,} receipts"
