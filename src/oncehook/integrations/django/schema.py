"""The operation of Django's migrations that runs one of Oncehook's migrations."""

from typing import Any

from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.operations.base import Operation

from oncehook.integrations.django.instance import project
from oncehook.store import queries
from oncehook.store.schema import split_statements

DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}


class RunMigration(Operation):
    """Run migration `number` of Oncehook, unless `oncehook migrate` has run it, and record it as that does."""

    reduces_to_sql = True
    reversible = True
    atomic = True

    def __init__(self, number: int) -> None:
        self.number = number

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the models are in the migration's other operations."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if connection.alias != project.using or connection.vendor not in DIALECTS:
            return
        dialect = DIALECTS[connection.vendor]
        sql = queries.load(dialect)
        if "migration_lock" in sql:
            schema_editor.execute(sql["migration_lock"], params=None)
        schema_editor.execute(sql["create_migrations"], params=None)
        if not schema_editor.collect_sql and self.number in self._applied(connection, dialect):
            return
        [(_, name, text)] = [found for found in queries.migrations(dialect) if found[0] == self.number]
        for statement in split_statements(text) if dialect == "sqlite" else [text]:
            schema_editor.execute(statement, params=None)
        schema_editor.execute(sql["record_migration"].format(number=self.number, name=name), params=None)

    def _applied(self, connection: Any, dialect: str) -> dict[int, str]:
        with connection.cursor() as cursor:
            cursor.execute(queries.load(dialect)["applied_migrations"])
            applied = dict(cursor.fetchall())
        queries.pending_migrations(dialect, applied)  # raises if the schema is from before the first release
        return applied

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.alias == project.using:
            raise IrreversibleError(
                "Oncehook's tables are not removed by a migration, because their events would be lost. To remove them, "
                "drop the tables whose names begin with webhook_"
            )

    def describe(self) -> str:
        return f"Run migration {self.number:03d} of Oncehook"

    @property
    def migration_name_fragment(self) -> str:
        return f"oncehook_{self.number:03d}"
