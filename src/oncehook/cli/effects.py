"""`oncehook effects`: list the effects that handlers requested, and replay failed ones."""

import sys

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import (
    config_option,
    json_option,
    opened_store,
    print_json,
    run,
)
from oncehook.cli.tables import Column, print_table
from oncehook.effects.effect import effect_json
from oncehook.model.effect import EffectFilter, EffectState, StoredEffect
from oncehook.operations.replay import replay_effects, whoami

PAGE = 500
COLORS = {"waiting": "cyan", "performing": "blue", "retrying": "yellow", "done": "green", "failed": "red"}


@click.group("effects", invoke_without_command=True)
@config_option
@app_option
@click.option("--status", type=click.Choice([s.value for s in EffectState]), help="Only effects with this status.")
@click.option("--source", help="Only effects of events of this source.")
@click.option("--receipt", type=int, help="Only effects of this receipt.")
@click.option("--key", help="Only the effect with this key.")
@click.option("--target", help="Only effects of this function, topic, task or address.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000), help="Maximum number of effects."
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    config: str | None,
    status: str | None,
    source: str | None,
    receipt: int | None,
    key: str | None,
    target: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List effects, newest first: calls that handlers requested and the relay runs after the commit. Exits 1 if no
    effect matches.

    \b
    oncehook effects --status failed
    oncehook effects --key receipt-email:in_1042 --json
    oncehook effects replay 17 18        replay these failed effects
    oncehook effects replay --failed     replay all failed effects
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    effect_filter = EffectFilter(receipt=receipt, status=status, source=source, key=key, target=target)
    if not run(_list(config, effect_filter, limit, as_json)):
        if not as_json:
            click.echo("no effect matches", err=True)
        sys.exit(1)


async def _list(config: str | None, effect_filter: EffectFilter, limit: int, as_json: bool) -> int:
    rows: list[StoredEffect] = []
    async with opened_store(config) as store:
        before = None
        while len(rows) < limit:
            page = await store.effects.find(effect_filter, limit=min(PAGE, limit - len(rows)), before=before)
            if not page:
                break
            before = page[-1].id
            rows += page
            if as_json:
                for row in page:
                    print_json(effect_json(row))
    if rows and not as_json:
        _print_table(rows)
    return len(rows)


COLUMNS = (
    Column("created"),
    Column("source"),
    Column("key", truncates=True),
    Column("target", truncates=True),
    Column("status", colors=COLORS),
    Column("tries", right=True),
    Column("error", truncates=True, colors="red"),
    Column("receipt", right=True),
    Column("effect", right=True),
)


def _print_table(rows: list[StoredEffect]) -> None:
    print_table(
        COLUMNS,
        [
            (
                row.created_at[5:19].replace("T", " "),
                row.scope if row.scope.startswith(f"{row.source}/") else row.source,  # with the tenant
                row.key,
                row.target,
                str(row.status),
                row.attempts,
                (row.last_error or "")[:200],
                row.receipt,
                row.id,
            )
            for row in rows
        ],
    )


@command.command("replay")
@click.argument("ids", metavar="[EFFECT]...", nargs=-1, type=int)
@click.option("--failed", is_flag=True, help="Replay all failed effects.")
@click.option("--source", help="With --failed: only effects of events of this source.")
@click.option("--target", help="With --failed: only effects of this function, topic, task or address.")
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@click.option(
    "--config", type=click.Path(dir_okay=False), help="Configuration file.  [default: oncehook.toml, if it exists]"
)
@json_option
@click.pass_obj
def replay(
    group_config: str | None,
    ids: tuple[int, ...],
    failed: bool,
    source: str | None,
    target: str | None,
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Run failed effects again, with the same idempotency key. Exits 1 if no effect was replayed.

    EFFECT is the number of an effect. The command skips effects that are done or waiting. Every replay is recorded in
    the audit log.

    \b
    oncehook effects replay 17
    oncehook effects replay --failed --target send_receipt
    """
    if bool(ids) == failed or (ids and (source or target)):
        raise click.UsageError("pass effects by number, or use --failed with --source or --target, but not both")
    effect_filter = EffectFilter(ids=ids or None, status=EffectState.FAILED.value, source=source, target=target)
    moved, skipped = run(_replay(config or group_config, effect_filter, actor or whoami()))
    if as_json:
        print_json({"replayed": moved, "left": len(skipped)})
    else:
        click.echo(f"replayed {moved:,} effect{'s' * (moved != 1)}", err=not moved)
        for id, reason in skipped.items():
            click.echo(f"skipped: effect {id}, {reason}", err=True)
    sys.exit(0 if moved else 1)


async def _replay(config: str | None, effect_filter: EffectFilter, actor: str) -> tuple[int, dict[int, str]]:
    """Return the number of replayed effects, and the reason for each named effect that was skipped."""
    async with opened_store(config) as store:
        moved = await replay_effects(store, effect_filter, actor=actor)
        skipped = sorted(set(effect_filter.ids or ()) - moved)
        existing: dict[int, StoredEffect] = {}
        if skipped:
            rows = await store.effects.find(EffectFilter(ids=tuple(skipped)), limit=len(skipped))
            existing = {row.id: row for row in rows}
    return len(moved), {id: _skip_reason(existing.get(id)) for id in skipped}


def _skip_reason(row: StoredEffect | None) -> str:
    if row is None:
        return "which does not exist"
    if row.args is None:
        return "whose arguments were erased"
    return f"which is {row.status}"
