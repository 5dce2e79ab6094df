"""`oncehook shards`: list the shards, and move a source from one to another."""

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import ParsedOption, config_option, json_option, opened, print_json, run
from oncehook.cli.progress import status_line
from oncehook.cli.tables import Column, print_table
from oncehook.config.configuration import Configuration
from oncehook.config.shard_settings import MAIN_SHARD, database_of
from oncehook.model.errors import ConfigurationError, OncehookError, Unavailable
from oncehook.model.values import duration
from oncehook.operations.move_plan import MoveRefused, Plan, plan_move
from oncehook.operations.move_source import Moved, SourceMove
from oncehook.operations.replay import whoami
from oncehook.store.federation import FederatedStore

COLUMNS = (
    Column("shard"),
    Column("database", truncates=True),
    Column("receipts", right=True),
    Column("lag", right=True),
    Column("state", truncates=True),
    Column("sources", truncates=True),
)


@click.group("shards", invoke_without_command=True)
@config_option
@app_option
@json_option
@click.pass_context
def command(context: click.Context, config: str | None, as_json: bool) -> None:
    """List the shards: database, receipts, lag, whether it can be reached, and its sources. Exits 1 if one cannot.

    \b
    oncehook shards
    oncehook shards --json | jq .shard
    oncehook shards move stripe-eu --to eu --dry-run
    """
    if context.invoked_subcommand is None:
        rows = run(_list(_configuration(config)))
        if as_json:
            for row in rows:
                print_json(row)
        else:
            _print(rows)
        sys.exit(0 if all(row["is_reachable"] for row in rows) else 1)


@command.command("move")
@click.argument("source")
@click.option("--to", metavar="SHARD", help="Shard that the source moves to; main is the setting `database`.")
@click.option("--dry-run", is_flag=True, help="Check the move and count the rows, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--abort", is_flag=True, help="Undo a move that has not been committed.")
@click.option(
    "--wait",
    type=ParsedOption("duration", duration),
    default="60s",
    show_default=True,
    help="How long to wait for running handlers and effects.",
)
@config_option
@app_option
@click.option("--actor", help="Name to record in the database.  [default: user@host]")
@json_option
def move(
    source: str,
    to: str | None,
    dry_run: bool,
    yes: bool,
    abort: bool,
    wait: float,
    config: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Move a source to another shard while the inbox runs. Exits 1 if it cannot be moved.

    The command first copies all rows. Then it pauses handlers and effects of the source, and waits for those that run.
    Deliveries then get 503 for a moment, while the command copies and compares the last changes. Senders deliver them
    again. If the command is interrupted, run it again to continue, or with --abort to undo the move.

    \b
    oncehook shards move stripe-eu --to eu --dry-run
    oncehook shards move stripe-eu --to eu --yes
    oncehook shards move stripe-eu --abort
    """
    if to is None and not abort:
        raise click.UsageError("pass --to SHARD, or --abort")
    configuration = _configuration(config)
    confirm = None if yes or dry_run or abort else _confirm
    work = _move(configuration, source, to, dry_run=dry_run, abort=abort, wait=wait, actor=actor, confirm=confirm)
    try:
        done = run(work)
    except MoveRefused as error:
        click.echo(f"oncehook: {error}", err=True)
        sys.exit(1)
    if as_json:
        print_json(_as_json(done, dry_run=dry_run))
    else:
        click.echo(_sentence(done, to, dry_run=dry_run))


def _configuration(config: str | None) -> Configuration:
    configuration = configured(config)[0]
    if not configuration.shards:
        raise ConfigurationError("there are no shards: the configuration has no [shards.NAME]")
    return configuration


# -- the list -------------------------------------------------------------------------------------------------------


async def _list(configuration: Configuration) -> list[dict[str, Any]]:
    async with opened(configuration) as store:
        assert isinstance(store, FederatedStore)
        found = await store.gather(_figures)
        moving = await store.gather(_moves)
        rows = []
        addresses = {name: database_of(name, shard) for name, shard in configuration.shards.items()}
        known = {*configuration.sources, *await store.receipts.sources()}
        for name, address in {MAIN_SHARD: configuration.settings.database, **addresses}.items():
            figures = found.get(name)
            rows.append(
                {
                    "shard": name,
                    "database": location(address),
                    "sources": sorted(source for source in known if store.routes.lives_in(source, name)),
                    "receipts": None if figures is None else figures.receipts,
                    "lag_seconds": None if figures is None else round(max(0.0, figures.lag), 3),
                    "is_reachable": figures is not None,
                    "moves": moving.get(name, {}),
                }
            )
        return rows


async def _figures(store: Any) -> Any:
    return await store.shards.figures()


async def _moves(store: Any) -> dict[str, str]:
    return {move.source: move.phase for move in await store.shards.moves() if move.phase not in ("left", "here")}


def location(address: str) -> str:
    """Host, port and name of a database, without user and password."""
    parts = urlsplit(address)
    return f"{parts.netloc.rpartition('@')[2] or 'the local socket'}{parts.path}"


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        COLUMNS,
        [
            (
                row["shard"],
                row["database"],
                "" if row["receipts"] is None else f"{row['receipts']:,}",
                "" if row["lag_seconds"] is None else f"{row['lag_seconds']:.1f} s",
                _state(row),
                ", ".join(row["sources"]),
            )
            for row in rows
        ],
    )


def _state(row: dict[str, Any]) -> str:
    if not row["is_reachable"]:
        return "cannot be reached"
    return ", ".join(f"{source}: {phase}" for source, phase in row["moves"].items()) or "ok"


# -- a move ---------------------------------------------------------------------------------------------------------


async def _move(
    configuration: Configuration,
    source: str,
    to: str | None,
    *,
    dry_run: bool,
    abort: bool,
    wait: float,
    actor: str | None,
    confirm: Any,
) -> Moved:
    async with opened(configuration) as store:
        assert isinstance(store, FederatedStore)
        if store.missing:
            raise Unavailable(f"the shard {next(iter(store.missing))} cannot be reached")
        settings = configuration.sources.get(source)
        if settings is None and source not in await store.receipts.sources():
            raise MoveRefused(f"there is no source {source}")
        if settings is not None and settings.email and to not in (None, MAIN_SHARD):
            raise MoveRefused(f"sources.{source}.email needs the shard {MAIN_SHARD}, which has the suppressions")
        plan = await plan_move(store.members, store.routes, source, to)
        with status_line(f"moving {source}") as show:
            moving = SourceMove(
                store.members, source, plan, actor=actor or whoami(), wait=wait, progress=lambda done: show(_line(done))
            )
            if abort:
                await moving.abort()
                return moving.done
            if plan.phase is None:
                await moving.check()
            if dry_run:
                moving.done.counts = await moving.old.counts(source)
                return moving.done
        if confirm is not None:
            confirm(source, plan, await moving.old.counts(source))
        with status_line(f"moving {source}") as show:
            try:
                return await moving.run()
            except (asyncio.CancelledError, OncehookError):
                click.echo(f"\nstopped while {moving.done.phase}. Run the command again to continue", err=True)
                raise


def _confirm(source: str, plan: Plan, counts: dict[str, int]) -> None:
    begun = "" if plan.phase is None else f", which is {plan.phase}"
    question = f"Move {source} with {counts['receipts']:,} receipts from {plan.old} to {plan.new}{begun}?"
    click.confirm(question, abort=True, err=True)


def _line(done: Moved) -> str:
    return (
        f"{done.phase}: {done.receipts:,} receipts, {done.effects:,} effects, {done.changes:,} changes, "
        f"{done.compared:,} compared, {done.deleted:,} deleted"
    )


def _sentence(done: Moved, to: str | None, *, dry_run: bool) -> str:
    counts = ", ".join(f"{number:,} {name}" for name, number in done.counts.items())
    if done.phase == "aborted":
        return f"{done.source} stays where it was"
    if dry_run:
        return f"{done.source} would be moved to {to}: {counts}; nothing was changed"
    frozen = "" if done.frozen_seconds is None else f"; deliveries were rejected for {done.frozen_seconds:g} s"
    return f"{done.source} lives in {to}: {counts or 'continued'}{frozen}"


def _as_json(done: Moved, *, dry_run: bool) -> dict[str, Any]:
    return {
        "source": done.source,
        "phase": done.phase,
        "dry_run": dry_run,
        "counts": done.counts,
        "changes": done.changes,
        "frozen_seconds": done.frozen_seconds,
    }
