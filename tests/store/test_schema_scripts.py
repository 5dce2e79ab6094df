"""Migrations as printed SQL, and the record of released migrations, which never change."""

import contextlib
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest

from docs import migrations as record
from oncehook.store import queries
from tests.support import programs
from tests.support.command_line import Run
from tests.support.migrations import APPLIED, BROKEN, SECOND, AddMigration, migration_names
from tests.support.servers import run_sql

pytestmark = pytest.mark.anyio


def test_migrate_command_prints_and_applies_only_pending_migrations(
    run: Run, tmp_path: Path, database: str, add_migration: AddMigration
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    assert run("migrate", "--config", str(config)).code == 0
    add_migration(SECOND)
    printed = run("migrate", "--config", str(config), "--sql").out
    assert f"-- 002_notes\n{SECOND[2]}" in printed and "001_initial" not in printed
    assert run("migrate", "--config", str(config)).out == "applied 002_notes\n"


def run_script(database: str, script: str) -> None:
    """Run SQL as psql and `sqlite3 -bail` do: up to the first statement that fails."""
    file = database.removeprefix("sqlite:///")
    if file != database:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.executescript(script)
    else:
        command = [str(programs.find("postgres") / "psql"), "-Xq", "-v", "ON_ERROR_STOP=1", database]
        subprocess.run(command, input=script, text=True, check=True, capture_output=True)


@pytest.mark.without_schema
@pytest.mark.parametrize("command", [["migrate", "--sql"], ["schema"]])
def test_printed_sql_creates_a_complete_schema(run: Run, tmp_path: Path, database: str, command: list[str]) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    run_script(database, run(*command, "--config", str(config)).out)
    assert run_sql(database, APPLIED) == migration_names(database)
    assert run("migrate", "--config", str(config), "--sql").out == ""
    assert run("migrate", "--config", str(config)).out == "the schema is up to date\n"


def test_printed_sql_migrates_an_older_schema(
    run: Run, tmp_path: Path, database: str, add_migration: AddMigration
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    add_migration(SECOND)
    run_script(database, run("migrate", "--config", str(config), "--sql").out)
    assert (
        run_sql(database, APPLIED) == migration_names(database)
        and run_sql(database, "SELECT note FROM webhook_receipts") == []
    )
    assert run("migrate", "--config", str(config)).out == "the schema is up to date\n"


def test_printed_sql_that_fails_changes_nothing(
    run: Run, tmp_path: Path, database: str, add_migration: AddMigration
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    add_migration(BROKEN)
    with pytest.raises((sqlite3.OperationalError, subprocess.CalledProcessError)):
        run_script(database, run("migrate", "--config", str(config), "--sql").out)
    assert run_sql(database, APPLIED) == migration_names(database)[:-1]
    run_sql(database, "CREATE TABLE webhook_notes (id integer)")  # fails if the table exists


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "--sql"], ["dead"], ["stats"]])
def test_commands_report_an_unreleased_schema(
    run: Run, tmp_path: Path, unreleased_database: str, command: list[str]
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{unreleased_database}"\n')
    ran = run(*command, "--config", str(config))
    assert ran.code == 2 and "from before the first release" in ran.error and "Traceback" not in ran.error


def test_both_dialects_have_the_same_migrations() -> None:
    both = [[(number, name) for number, name, _ in queries.migrations(d)] for d in ("postgres", "sqlite")]
    assert both[0] == both[1]
    assert [number for number, _ in both[0]] == list(range(1, len(both[0]) + 1))


def test_migrations_match_their_recorded_digests() -> None:
    problems = record.problems(record.recorded(), record.digests(), max(record.RELEASED.values(), default=0))
    assert not problems, "\n".join(problems)


def test_every_release_in_the_changelog_records_its_last_migration() -> None:
    changelog = (Path(record.__file__).parent.parent / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+) \(\d", changelog, re.MULTILINE)
    assert set(record.RELEASED) == set(versions), (
        "add the version and its last migration to RELEASED in docs/migrations.py"
    )


def test_changed_migration_of_a_release_is_reported_with_the_remedy() -> None:
    before = {"sqlite/migrations/001_initial.sql": "a", "sqlite/migrations/002_notes.sql": "b"}
    edited = {"sqlite/migrations/001_initial.sql": "x", "sqlite/migrations/002_notes.sql": "y"}
    released, fresh = record.problems(before, edited, released=1)
    assert "001_initial.sql has been released" in released and "append-only" in released and "NNN_name.sql" in released
    assert "002_notes.sql" in fresh and "python -m docs.generate" in fresh
    (removed,) = record.problems(before, {"sqlite/migrations/002_notes.sql": "b"}, released=1)
    assert "restore the file" in removed
    added = {**before, "sqlite/migrations/003_more.sql": "c"}
    assert record.problems(before, added, released=2) == [
        "sqlite/migrations/003_more.sql is not recorded: run `python -m docs.generate`"
    ]


def test_docs_generator_rejects_a_changed_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "migrations.sha256"
    copy.write_text(record.RECORDED.read_text("utf-8").replace("  sqlite/", "0  sqlite/"), "utf-8")
    monkeypatch.setattr(record, "RECORDED", copy)
    monkeypatch.setattr(record, "RELEASED", {"0.1.0": 1})
    with pytest.raises(SystemExit, match="append-only"):
        record.record()
    monkeypatch.setattr(record, "RELEASED", {})
    assert record.record() and not record.record()
    assert copy.read_text("utf-8") == record.RECORDED.read_text("utf-8")
