"""`oncehook migrate`: bring the database schema up to date."""

from dataclasses import replace

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, run
from oncehook.config.settings import Settings
from oncehook.store import dialect_of, make_store, queries
from oncehook.store.schema import migration_script


@click.command("migrate")
@config_option
@app_option
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it.")
def command(config: str | None, sql: bool) -> None:
    """Bring the database schema up to date. Concurrent runs are safe: they take a lock.

    With --sql, the command prints the SQL for psql or sqlite3: one transaction that also records the migrations.

    \b
    oncehook migrate
    oncehook migrate --sql > changes.sql
    psql -v ON_ERROR_STOP=1 -f changes.sql "$DATABASE_URL"
    sqlite3 -bail oncehook.db < changes.sql
    """
    settings = replace(configured(config)[0].settings, migrate="never")
    run(_print(settings) if sql else _apply(settings))


async def _apply(settings: Settings) -> None:
    store = make_store(settings)
    await store.open()
    try:
        applied = await store.schema.migrate()
    finally:
        await store.close()
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("the schema is up to date")


async def _print(settings: Settings) -> None:
    click.echo(migration_script(dialect_of(settings.database).name, await _pending(settings)), nl=False)


async def _pending(settings: Settings) -> list[tuple[int, str, str]]:
    dialect = dialect_of(settings.database)
    file = dialect.file(settings.database)
    if file is not None and not file.exists():  # opening the file would create it
        return list(queries.migrations(dialect.name))
    store = make_store(settings)
    await store.open()
    try:
        return await store.schema.pending()
    finally:
        await store.close()
