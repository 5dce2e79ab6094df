"""`oncehook effects`: what is done outside the database after a handler's commit."""

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
COLOURS = {"waiting": "cyan", "performing": "blue", "retrying": "yellow", "done": "green", "failed": "red"}


@click.group("effects", invoke_without_command=True)
@config_option
@app_option
@click.option("--status", type=click.Choice([s.value for s in EffectState]), help="Only in this state.")
@click.option("--source", help="Only asked for by events of this source.")
@click.option("--receipt", type=int, help="Only recorded by this receipt's event.")
@click.option("--key", help="Only of this key.")
@click.option("--target", help="Only of this function or topic.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000), help="At most so many.")
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
    """List effects, newest first: what handlers have recorded to be done after their commit. Exits 1 if none matches.

    \b
    oncehook effects --status failed
    oncehook effects --key receipt-email:in_1042 --json
    oncehook effects replay 17 18        the failed ones are tried again
    oncehook effects replay --failed
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    wanted = EffectFilter(receipt=receipt, status=status, source=source, key=key, target=target)
    if not run(_list(config, wanted, limit, as_json)):
        if not as_json:
            click.echo("no effect matches", err=True)
        sys.exit(1)


async def _list(config: str | None, wanted: EffectFilter, limit: int, as_json: bool) -> int:
    rows: list[StoredEffect] = []
    async with opened_store(config) as store:
        before = None
        while len(rows) < limit:
            page = await store.effects.find(wanted, limit=min(PAGE, limit - len(rows)), before=before)
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
    Column("key", cuts=True),
    Column("target", cuts=True),
    Column("status", colours=COLOURS),
    Column("tries", right=True),
    Column("error", cuts=True, colours="red"),
    Column("receipt", right=True),
    Column("effect", right=True),
)


def _print_table(rows: list[StoredEffect]) -> None:
    print_table(
        COLUMNS,
        [
            (
                row.created_at[:19],
                row.source,
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
@click.option("--failed", is_flag=True, help="All that have failed.")
@click.option("--source", help="With --failed: only asked for by events of this source.")
@click.option("--target", help="With --failed: only of this function or topic.")
@click.option("--actor", help="Who is recorded as having done it.  [default: user@host]")
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file.  [default: as above]")
@json_option
@click.pass_obj
def replay(
    outer: str | None,
    ids: tuple[int, ...],
    failed: bool,
    source: str | None,
    target: str | None,
    actor: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Have failed effects performed again, with the same idempotency key. Exits 1 if there was nothing to do.

    An effect that is done is never performed again, and one that waits needs no replay. Who asked is recorded.

    \b
    oncehook effects replay 17
    oncehook effects replay --failed --target send_receipt
    """
    if bool(ids) == failed or (ids and (source or target)):
        raise click.UsageError("name effects by their number, or say --failed (with --source, --target): not both")
    wanted = EffectFilter(ids=ids or None, status=EffectState.FAILED.value, source=source, target=target)
    moved, left = run(_replay(config or outer, wanted, actor or whoami()))
    if as_json:
        print_json({"replayed": moved, "left": len(left)})
    else:
        click.echo(f"replayed {moved:,} effect{'s' * (moved != 1)}", err=not moved)
        for id, reason in left.items():
            click.echo(f"left alone: effect {id}, {reason}", err=True)
    sys.exit(0 if moved else 1)


async def _replay(config: str | None, wanted: EffectFilter, actor: str) -> tuple[int, dict[int, str]]:
    """How many were moved, and of those that were named and were not, why."""
    async with opened_store(config) as store:
        moved = await replay_effects(store, wanted, actor=actor)
        left = sorted(set(wanted.ids or ()) - moved)
        there: dict[int, StoredEffect] = {}
        if left:
            found = await store.effects.find(EffectFilter(ids=tuple(left)), limit=len(left))
            there = {row.id: row for row in found}
    return len(moved), {id: _why_left(there.get(id)) for id in left}


def _why_left(row: StoredEffect | None) -> str:
    if row is None:
        return "which is not there"
    if row.args is None:
        return "whose arguments were erased"
    return f"which is {row.status}"
