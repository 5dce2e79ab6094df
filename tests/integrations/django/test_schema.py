"""The operation that runs one of Oncehook's migrations."""

from pathlib import Path

from oncehook.integrations.django import migrations
from oncehook.integrations.django.schema import RunMigration
from oncehook.store import queries


def test_every_migration_of_oncehook_has_one_of_django() -> None:
    """A migration that is added to store/sql needs a file in integrations/django/migrations that runs it."""
    folder = Path(migrations.__file__).parent
    text = "".join(file.read_text("utf-8") for file in folder.glob("[0-9]*.py"))
    missing = [number for number, *_ in queries.migrations("sqlite") if f"RunMigration({number})" not in text]
    assert missing == [], "add a migration with RunMigration(number) for each of these"


def test_operation_describes_itself() -> None:
    assert RunMigration(1).describe() == "Run migration 001 of Oncehook"
    assert RunMigration(12).migration_name_fragment == "oncehook_012"
