"""Migrations on both databases: applied once, whoever starts first, and never edited once released."""

import asyncio
import contextlib
import re
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from docs import migrations as record
from oncehook import Inbox
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store import make_store, queries
from oncehook.store.store import Store
from tests.support import programs
from tests.support.command_line import Run
from tests.support.events import make_claim
from tests.support.servers import ask

pytestmark = pytest.mark.anyio

APPLIED = "SELECT number, name FROM webhook_migrations ORDER BY number"
SECOND = (2, "notes", "ALTER TABLE webhook_receipts ADD COLUMN note text;\nCREATE TABLE webhook_notes (id integer);\n")
BROKEN = (2, "broken", "CREATE TABLE webhook_notes (id integer);\nINSERT INTO webhook_nowhere VALUES (1);\n")


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, str, str]], None]:
    """Adds a migration to those of this version, as the next release would."""

    def add(migration: tuple[int, str, str]) -> None:
        released = queries.migrations
        monkeypatch.setattr(queries, "migrations", lambda dialect: (*released(dialect), migration))

    return add


async def started(database: str, *, migrate: str = "auto") -> Store:
    store = make_store(Settings(database=database, migrate=migrate))
    await store.open()
    return store


def names(database: str) -> list[tuple[int, str]]:
    dialect = database.partition(":")[0].removesuffix("ql")
    return [(number, name) for number, name, _ in queries.migrations(dialect)]


async def test_migrated_store_has_nothing_pending_and_migrating_again_does_nothing(store: Store) -> None:
    assert await store.schema.pending() == []
    assert await store.schema.migrate() == []


@pytest.mark.without_schema
async def test_every_migration_is_pending_on_an_empty_database_until_migrate(database: str) -> None:
    store = await started(database, migrate="never")
    pending = await store.schema.pending()
    assert [number for number, _, _ in pending] == list(range(1, len(pending) + 1)) and pending
    assert await store.schema.migrate() == [f"{number:03d}_{name}" for number, name, _ in pending]
    assert await store.schema.pending() == []
    assert (await store.claims.insert([make_claim()]))[0].fresh
    await store.close()


@pytest.mark.without_schema
async def test_stores_that_start_at_once_apply_each_migration_once(
    database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    add_migration(SECOND)
    stores = [make_store(Settings(database=database)) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    assert ask(database, APPLIED) == names(database) and names(database)[-1] == (2, "notes")
    outcomes = await asyncio.gather(*(store.claims.insert([make_claim()]) for store in stores))
    assert sum(claimed.fresh for (claimed,) in outcomes) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_older_schema_is_brought_up_to_date_and_keeps_its_events(
    database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    older = await started(database)
    (claimed,) = await older.claims.insert([make_claim("evt_1")])
    add_migration(SECOND)
    waiting = await started(database, migrate="never")
    assert await waiting.schema.pending() == [SECOND]
    newer = await started(database)
    try:
        assert await newer.schema.pending() == []
        assert ask(database, "SELECT event_id, note FROM webhook_receipts") == [("evt_1", None)]
        assert not (await newer.claims.insert([make_claim("evt_1")]))[0].fresh
        assert (await older.claims.insert([make_claim("evt_2")]))[
            0
        ].fresh  # additive: the older release goes on beside it
        assert await older.receipts.get(claimed.receipt) is not None
    finally:
        for store in (older, waiting, newer):
            await store.close()


async def test_schema_of_a_newer_release_is_accepted(database: str) -> None:
    await (await started(database)).close()
    ask(database, "INSERT INTO webhook_migrations (number, name) VALUES (99, 'later')")
    store = await started(database)
    assert await store.schema.pending() == [] and (await store.claims.insert([make_claim()]))[0].fresh
    await store.close()


async def test_failed_migration_leaves_the_schema_as_it_was(
    database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    await (await started(database)).close()
    add_migration(BROKEN)
    with pytest.raises(StoreUnavailable, match="webhook_nowhere"):
        await started(database)
    assert ask(database, APPLIED) == names(database)[:-1]
    ask(database, "CREATE TABLE webhook_notes (id integer)")  # it is not there


def test_migrate_prints_and_applies_only_what_is_missing(
    run: Run, tmp_path: Path, database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    assert run("migrate", "--config", str(config)).code == 0
    add_migration(SECOND)
    printed = run("migrate", "--config", str(config), "--sql").out
    assert f"-- 002_notes\n{SECOND[2]}" in printed and "001_initial" not in printed
    assert run("migrate", "--config", str(config)).out == "applied 002_notes\n"


@pytest.mark.without_schema
@pytest.mark.parametrize("command", [["migrate", "--sql"], ["schema"]])
def test_printed_sql_makes_a_schema_that_is_up_to_date(
    run: Run, tmp_path: Path, database: str, command: list[str]
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    run_script(database, run(*command, "--config", str(config)).out)
    assert ask(database, APPLIED) == names(database)
    assert run("migrate", "--config", str(config), "--sql").out == ""
    assert run("migrate", "--config", str(config)).out == "the schema is up to date\n"


def test_printed_sql_brings_an_older_schema_up_to_date(
    run: Run, tmp_path: Path, database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    add_migration(SECOND)
    run_script(database, run("migrate", "--config", str(config), "--sql").out)
    assert ask(database, APPLIED) == names(database) and ask(database, "SELECT note FROM webhook_receipts") == []
    assert run("migrate", "--config", str(config)).out == "the schema is up to date\n"


def test_printed_sql_that_fails_changes_nothing(
    run: Run, tmp_path: Path, database: str, add_migration: Callable[[tuple[int, str, str]], None]
) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n')
    add_migration(BROKEN)
    with pytest.raises((sqlite3.OperationalError, subprocess.CalledProcessError)):
        run_script(database, run("migrate", "--config", str(config), "--sql").out)
    assert ask(database, APPLIED) == names(database)[:-1]
    ask(database, "CREATE TABLE webhook_notes (id integer)")  # it is not there


def run_script(database: str, script: str) -> None:
    """Run SQL as psql and `sqlite3 -bail` do: up to the first statement that fails."""
    file = database.removeprefix("sqlite:///")
    if file != database:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.executescript(script)
    else:
        command = [programs.find("postgres") / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", database]
        subprocess.run(command, input=script, text=True, check=True, capture_output=True)


# -- schemas from before the first release --------------------------------------------------------------------------


@pytest.fixture
def unreleased(database: str) -> str:
    """A database as development versions before the first release left it: other migrations under the same numbers."""
    asyncio.run(_make_unreleased(database))
    return database


async def _make_unreleased(database: str) -> None:
    await (await started(database)).close()
    ask(database, "DELETE FROM webhook_migrations")
    ask(database, "INSERT INTO webhook_migrations (number, name) VALUES (1, 'door'), (2, 'work'), (22, 'unhandled')")


@pytest.mark.parametrize("migrate", ["auto", "never"])
def test_unreleased_schema_stops_a_start_with_a_sentence(
    unreleased: str, make_inbox: Callable[..., Inbox], migrate: str
) -> None:
    async def start() -> None:
        async with make_inbox(migrate=migrate).lifespan():
            pass

    with pytest.raises(ConfigurationError, match=r"before the first release.* 001 is door.* recreate the database"):
        asyncio.run(start())
    assert ask(unreleased, APPLIED) == [(1, "door"), (2, "work"), (22, "unhandled")]


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "--sql"], ["dead"], ["stats"]])
def test_commands_name_an_unreleased_schema(run: Run, tmp_path: Path, unreleased: str, command: list[str]) -> None:
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{unreleased}"\n')
    ran = run(*command, "--config", str(config))
    assert ran.code == 2 and "from before the first release" in ran.error and "Traceback" not in ran.error


# -- append-only ----------------------------------------------------------------------------------------------------


def test_both_dialects_have_the_same_migrations() -> None:
    both = [[(number, name) for number, name, _ in queries.migrations(d)] for d in ("postgres", "sqlite")]
    assert both[0] == both[1]
    assert [number for number, _ in both[0]] == list(range(1, len(both[0]) + 1))


def test_migrations_are_as_recorded() -> None:
    found = record.problems(record.recorded(), record.digests(), max(record.RELEASED.values(), default=0))
    assert not found, "\n".join(found)


def test_every_release_of_the_changelog_records_its_last_migration() -> None:
    changelog = (Path(record.__file__).parent.parent / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[?v?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert set(record.RELEASED) == set(versions), (
        "add the version and its last migration to RELEASED in docs/migrations.py"
    )


def test_changing_a_released_migration_is_a_problem_that_says_what_to_do() -> None:
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


def test_regenerating_refuses_a_changed_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "migrations.sha256"
    copy.write_text(record.RECORDED.read_text("utf-8").replace("  sqlite/", "0  sqlite/"), "utf-8")
    monkeypatch.setattr(record, "RECORDED", copy)
    monkeypatch.setattr(record, "RELEASED", {"0.1.0": 1})
    with pytest.raises(SystemExit, match="append-only"):
        record.record()
    monkeypatch.setattr(record, "RELEASED", {})
    assert record.record() and not record.record()
    assert copy.read_text("utf-8") == record.RECORDED.read_text("utf-8")
