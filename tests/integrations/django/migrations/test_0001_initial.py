"""Django's migrations create the schema that `oncehook migrate` creates, in whatever order they run."""

import asyncio
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db.migrations.exceptions import IrreversibleError

from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.django_project import using_database
from tests.support.schema import describe_schema
from tests.support.servers import Postgres, sqlite_file

pytestmark = pytest.mark.without_schema


def migrate_with_django(*arguments: str) -> None:
    call_command("migrate", "oncehook", *arguments, verbosity=0, stdout=StringIO())


def migrate_with_oncehook(address: str) -> list[str]:
    async def run() -> list[str]:
        store = make_store(Settings(database=address, migrate="never"))
        await store.open()
        try:
            return await store.schema.migrate()
        finally:
            await store.close()

    return asyncio.run(run())


def test_django_migrate_gives_the_schema_of_oncehook_migrate(database: str, request: pytest.FixtureRequest) -> None:
    if database.startswith("sqlite"):
        other = sqlite_file(Path(database.removeprefix("sqlite:///")).with_name("other.db"))
    else:
        server: Postgres = request.getfixturevalue("postgres")
        other = server.database(migrated=True)
    with using_database(database):
        migrate_with_django()
    assert describe_schema(database) == describe_schema(other)
    assert len(describe_schema(database)) > 50
    assert migrate_with_oncehook(database) == [], "Oncehook knows what Django has applied"


def test_django_migrate_accepts_the_schema_of_oncehook_migrate(database: str) -> None:
    assert migrate_with_oncehook(database)
    before = describe_schema(database)
    with using_database(database):
        migrate_with_django()
        migrate_with_django()
    assert describe_schema(database) == before


def test_models_have_no_pending_migration(database: str) -> None:
    with using_database(database):
        call_command("makemigrations", "oncehook", check=True, verbosity=0, stdout=StringIO())


def test_tables_are_not_removed_by_a_migration(sqlite_without_schema: str) -> None:
    with using_database(sqlite_without_schema):
        migrate_with_django()
        with pytest.raises(IrreversibleError, match="their events would be lost"):
            migrate_with_django("zero")


def test_sqlmigrate_prints_the_statements(sqlite_without_schema: str) -> None:
    output = StringIO()
    with using_database(sqlite_without_schema):
        call_command("sqlmigrate", "oncehook", "0001", stdout=output)
    assert "CREATE TABLE webhook_receipts" in output.getvalue()


@pytest.fixture
def sqlite_without_schema(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'empty.db'}"
