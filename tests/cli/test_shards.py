"""`oncehook shards`, and other commands on an inbox with shards."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.cli.shards import location
from oncehook.config.configuration import load
from tests.support.command_line import Run
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, post, shard_databases, stripe_sources


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path, in_folder: Path) -> Iterator[ShardDatabases]:
    """Two shards with one event of the source `one` each in `main`, and one of `two` in `a`."""
    with shard_databases(postgres, in_folder, "a") as made:
        file = made.write(sources=stripe_sources("one", "two"), a='sources = ["two"]')
        asyncio.run(_deliver(file))
        yield made


async def _deliver(file: Path) -> None:
    inbox = Inbox(config=load(file, {}), worker=False)
    async with inbox.lifespan():
        for source in ("one", "two"):
            assert await post(inbox, source, f"evt_{source}") == 202


def test_shards_are_listed_without_passwords(databases: ShardDatabases, run: Run) -> None:
    listed = run("shards", "--json")
    assert listed.code == 0
    assert [(row["shard"], row["sources"], row["receipts"], row["is_reachable"]) for row in listed.lines] == [
        ("main", ["one"], 1, True),
        ("a", ["two"], 1, True),
    ]
    assert "postgres@" not in listed.out and "ok" in run("shards").out
    assert location("postgresql://jane:secret@db1:5432/hooks?sslmode=require") == "db1:5432/hooks"


def test_shard_that_is_down_is_listed_and_named_by_other_commands(databases: ShardDatabases, run: Run) -> None:
    down = databases.addresses["a"].rpartition("/")[2]
    run_sql(databases.addresses["main"], f"ALTER DATABASE {down} ALLOW_CONNECTIONS false")
    listed = run("shards")
    assert listed.code == 1 and "cannot be reached" in listed.out
    events = run("events", "--json")
    assert [row["event_id"] for row in events.lines] == ["evt_one"] and "shard a is left out" in events.error
    assert run("shards", "move", "one", "--to", "a", "--yes").code == 1


def test_fsck_checks_every_shard_and_names_the_one_with_a_violation(databases: ShardDatabases, run: Run) -> None:
    assert run("fsck").code == 0
    run_sql(databases.addresses["a"], "DELETE FROM webhook_payloads")
    found = run("fsck")
    assert found.code == 1 and "I1 is violated in shard a: An event that is not finished has no payload" in found.out
    down = databases.addresses["a"].rpartition("/")[2]
    run_sql(databases.addresses["main"], f"ALTER DATABASE {down} ALLOW_CONNECTIONS false")
    rest = run("fsck")
    assert rest.code == 1 and "no violation" in rest.out and "shard a is left out" in rest.error


def test_commands_read_all_shards(databases: ShardDatabases, run: Run) -> None:
    events = run("events", "--json").lines
    assert [row["event_id"] for row in events] == ["evt_two", "evt_one"]
    assert all(run("show", str(row["receipt"])).code == 0 for row in events)
    assert {row["source"] for row in run("stats", "--json").lines} == {"one", "two"}
    assert run("migrate").out.splitlines() == ["the schema is up to date", "the schema is up to date in shard a"]
    assert run("prune", "--dry-run").code == 0


def test_source_is_moved_and_back(databases: ShardDatabases, run: Run) -> None:
    dry = run("shards", "move", "one", "--to", "a", "--dry-run")
    assert dry.code == 0 and "1 receipts, 0 keys, 0 effects; nothing was changed" in dry.out
    assert databases.events("main") == ["evt_one"]
    moved = run("shards", "move", "one", "--to", "a", "--yes", "--json")
    assert moved.code == 0 and moved.lines[0]["phase"] == "done" and moved.lines[0]["frozen_seconds"] < 5
    assert databases.events("a") == ["evt_one", "evt_two"]
    assert run("shards", "--json").lines[1]["sources"] == ["one", "two"]
    again = run("shards", "move", "one", "--to", "a", "--yes")
    assert again.code == 1 and "lives in a already" in again.error
    back = run("shards", "move", "one", "--to", "main", "--yes")
    assert back.code == 0 and "one lives in main: 1 receipts" in back.out


def test_move_is_aborted(databases: ShardDatabases, run: Run) -> None:
    assert run("shards", "move", "one", "--abort").code == 1
    run_sql(databases.addresses["main"], "SELECT webhook_watch('one', true)")
    move = "INSERT INTO webhook_moves (source, phase, from_shard, to_shard, actor) VALUES"
    run_sql(databases.addresses["main"], f"{move} ('one', 'copying', 'main', 'a', 'jane')")
    run_sql(databases.addresses["a"], f"{move} ('one', 'arriving', 'main', 'a', 'jane')")
    assert "one: copying" in run("shards").out
    aborted = run("shards", "move", "one", "--abort")
    assert aborted.code == 0 and "stays where it was" in aborted.out
    assert "one: copying" not in run("shards").out


def test_wrong_usage_is_explained(databases: ShardDatabases, run: Run) -> None:
    assert run("shards", "move", "one").code == 2
    unknown = run("shards", "move", "nine", "--to", "a")
    assert unknown.code == 1 and "there is no source nine" in unknown.error


def test_inbox_without_shards_says_so(in_folder: Path, run: Run) -> None:
    (in_folder / "oncehook.toml").write_text('database = "sqlite:///x.db"\n')
    listed = run("shards")
    assert listed.code == 2 and "no [shards.NAME]" in listed.error
