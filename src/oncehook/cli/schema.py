"""`oncehook schema`: print the SQL of the tables, or list their columns."""

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, json_option, print_json
from oncehook.store import dialect_of, queries
from oncehook.store.schema import migration_script

DIALECTS = ("sqlite", "postgres")


@click.command("schema")
@click.argument("table", required=False)
@config_option
@app_option
@click.option("--dialect", type=click.Choice(DIALECTS), help="SQL dialect.  [default: that of the configured database]")
@json_option
def command(table: str | None, config: str | None, dialect: str | None, as_json: bool) -> None:
    """Print the SQL that creates the tables: every migration in order, as `migrate` runs it on an empty database.

    With --json, print one object per public column: its table, name, type and meaning. TABLE selects one table. The
    command does not open a database.

    \b
    oncehook schema > schema.sql
    oncehook schema --dialect postgres
    oncehook schema webhook_receipts --json | jq -r '.column + ": " + .meaning'
    """
    dialect = dialect or dialect_of(configured(config)[0].settings.database).name
    if as_json:
        _print_columns(table, dialect)
    elif table is not None:
        raise click.UsageError("TABLE needs --json: the SQL of one table can be spread over several migrations")
    else:
        click.echo(migration_script(dialect, queries.migrations(dialect)), nl=False)


def _print_columns(table: str | None, dialect: str) -> None:
    tables = queries.columns()
    if table is not None and table not in tables:
        raise click.UsageError(f"there is no table {table}; the tables are {', '.join(tables)}")
    for name in tables if table is None else [table]:
        for column, about in tables[name].items():
            if about[dialect]:
                row = {"table": name, "column": column, "type": about[dialect], "meaning": about["meaning"]}
                print_json(row)
