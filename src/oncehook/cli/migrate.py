"""`oncehook migrate`: bring the database schema up to date."""

from dataclasses import replace

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, run
from oncehook.config.settings import Settings
from oncehook.config.shard_settings import database_of
from oncehook.store import dialect_of, make_store, queries
from oncehook.store.schema import migration_script


@click.command("migrate")
@config_option
@app_option
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it.")
def command(config: str | None, sql: bool) -> None:
    """Bring the database schema up to date. Concurrent runs are safe: they take a lock.

    With shards, the command migrates all of them. With --sql, it prints the SQL for psql or sqlite3: one transaction
    that also records the migrations.

    \b
    oncehook migrate
    oncehook migrate --sql > changes.sql
    psql -v ON_ERROR_STOP=1 -f changes.sql "$DATABASE_URL"
    sqlite3 -bail oncehook.db < changes.sql
    """
    configuration = configured(config)[0]
    settings = replace(configuration.settings, migrate="never")
    if sql:
        run(_print(settings))
        return
    run(_apply(settings))
    for name, shard in configuration.shards.items():
        run(_apply(replace(settings, database=database_of(name, shard)), f" in shard {name}"))


async def _apply(settings: Settings, where: str = "") -> None:
    store = make_store(settings)
    await store.open()
    try:
        applied = await store.schema.migrate()
    finally:
        await store.close()
    for name in applied:
        click.echo(f"applied {name}{where}")
    if not applied:
        click.echo(f"the schema is up to date{where}")


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
