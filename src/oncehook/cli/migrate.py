"""`oncehook migrate`: the schema, up to date."""

from dataclasses import replace

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, run
from oncehook.config.settings import Settings
from oncehook.store import make_store, queries


@click.command("migrate")
@config_option
@app_option
@click.option("--sql", is_flag=True, help="Print what would be run, and run nothing.")
def command(config: str | None, sql: bool) -> None:
    """Bring the database's schema up to date. Starting twice at once is safe: one waits for the other.

    \b
    oncehook migrate
    oncehook migrate --sql > changes.sql
    """
    settings = replace(configured(config)[0].settings, migrate="never")
    run(_print(settings) if sql else _apply(settings))


async def _apply(settings: Settings) -> None:
    store = make_store(settings)
    await store.open()
    try:
        done = await store.migrate()
    finally:
        await store.close()
    for name in done:
        click.echo(f"applied {name}")
    if not done:
        click.echo("the schema is up to date")


async def _print(settings: Settings) -> None:
    for number, name, text in await _pending(settings):
        click.echo(f"-- {number:03d}_{name}\n{text}")


async def _pending(settings: Settings) -> list[tuple[int, str, str]]:
    if settings.database.startswith("sqlite:"):
        from oncehook.store.sqlite.file import database_path

        if not database_path(settings.database).exists():  # opening it would create it
            return list(queries.migrations("sqlite"))
    store = make_store(settings)
    await store.open()
    try:
        return await store.pending_migrations()
    finally:
        await store.close()
