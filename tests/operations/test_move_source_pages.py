"""Moves of a source whose rows and changes span several pages: nothing is left out, and the progress is right."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.operations import move_source
from oncehook.operations.move_plan import plan_move
from oncehook.operations.move_source import Moved, SourceMove, first_bytes
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, federation_of, shard_databases, stripe_sources

pytestmark = pytest.mark.anyio

EVENTS = [f"evt_{number}" for number in range(5)]
CHANGES = "SELECT count(*) FROM webhook_move_changes"


@pytest.fixture
async def databases(postgres: Postgres, tmp_path: Path) -> AsyncIterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a") as made:
        yield made


@pytest.fixture
async def move(databases: ShardDatabases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SourceMove]:
    """A move in pages of two, of a source with five events, five effects that wait, five that ran, five entities."""
    monkeypatch.setattr(move_source, "PAGE", 2)
    inbox = Inbox(config=databases.configuration(sources=stripe_sources("one"), a=""), worker=False)
    async with inbox.lifespan():
        federation = federation_of(inbox)
        await federation.main.claims.insert([make_claim(event, source="one") for event in EVENTS])
        for status in ("waiting", "done"):
            columns = "scope, key, kind, target, source, receipt_id, status"
            insert(databases, "effects", columns, f"'one', '{{0}}-{status}', 'x', 'x', 'one', 1, '{status}'")
        insert(databases, "entities", "scope, kind, id, is_terminal, event_id, receipt_id", ENTITY)
        assert federation.main.shards is not None
        await federation.routes.load(federation.main.shards)
        plan = await plan_move(federation.members, federation.routes, "one", "a")
        yield SourceMove(federation.members, "one", plan, actor="test", wait=10.0)


ENTITY = "'one', 'invoice', '{0}', false, '{0}', 1"


def insert(databases: ShardDatabases, table: str, columns: str, values: str) -> None:
    rows = ", ".join(f"({values.format(event)})" for event in EVENTS)
    run_sql(databases.addresses["main"], f"INSERT INTO webhook_{table} ({columns}) VALUES {rows}")


def change_receipts(databases: ShardDatabases, text: str) -> None:
    run_sql(databases.addresses["main"], f"UPDATE webhook_receipts SET last_error = '{text}' WHERE source = 'one'")


def errors(databases: ShardDatabases, shard: str) -> list[str]:
    rows = databases.rows(shard, "SELECT last_error FROM webhook_receipts WHERE source = 'one'")
    return [error for (error,) in rows]


def before_phase(move: SourceMove, phase: str, act: Callable[[], None]) -> None:
    """Call `act` immediately before the move enters a phase."""
    set_phase: Callable[[str], Awaitable[None]] = move._set_phase

    async def acting(entered: str) -> None:
        if entered == phase:
            act()
        await set_phase(entered)

    move._set_phase = acting  # type: ignore[assignment, method-assign]


async def test_move_copies_every_page_and_counts_each_row_once(databases: ShardDatabases, move: SourceMove) -> None:
    keys = {
        "effects": "SELECT key || status FROM webhook_effects ORDER BY 1",
        "entities": "SELECT id FROM webhook_entities ORDER BY 1",
        "receipts": "SELECT event_id FROM webhook_receipts ORDER BY 1",
        "payloads": "SELECT receipt_id FROM webhook_payloads ORDER BY 1",
    }
    before = {table: databases.rows("main", sql) for table, sql in keys.items()}
    done = await move.run()
    assert {table: databases.rows("a", sql) for table, sql in keys.items()} == before
    assert not any(databases.rows("main", sql) for sql in keys.values())
    assert (done.receipts, done.effects, done.entities, done.compared, done.deleted) == (5, 10, 5, 5, 20)


async def test_bodies_that_are_too_large_for_one_transaction_are_copied_in_several(
    databases: ShardDatabases, move: SourceMove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_source, "PAGE_BYTES", 1)
    copied: list[int] = []

    def progress(done: Moved) -> None:
        if done.phase == "copying" and done.receipts not in copied:
            copied.append(done.receipts)

    move._progress = progress
    await move.run()
    assert copied == [0, 1, 2, 3, 4, 5] and databases.events("a") == EVENTS


def test_transaction_has_bodies_up_to_its_limit_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_source, "PAGE_BYTES", 10)
    assert first_bytes([(1, 4), (2, 6), (3, 1)]) == [1, 2]
    assert first_bytes([(1, 50), (2, 1)]) == [1]


async def test_changes_of_several_pages_are_copied_before_the_source_is_drained(
    databases: ShardDatabases, move: SourceMove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_source, "MAX_CHANGES", 3)
    monkeypatch.setattr(move_source, "FEW_CHANGES", 0)
    waiting: list[Any] = []

    def change(done: Moved) -> None:
        if done.phase == "comparing" and "late" not in errors(databases, "main"):
            change_receipts(databases, "late")

    move._progress = change
    before_phase(move, "draining", lambda: waiting.extend(databases.rows("main", CHANGES)))
    await move.run()
    assert waiting == [(0,)], "a source with few changes is frozen for a short time"
    assert errors(databases, "a") == ["late"] * 5


async def test_last_changes_of_several_pages_are_copied_and_compared(
    databases: ShardDatabases, move: SourceMove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_source, "MAX_CHANGES", 3)
    before_phase(move, "frozen", lambda: change_receipts(databases, "last"))
    compared: set[int] = set()
    differing = move._differing

    async def recording(ids: Sequence[int], *, effects: bool = False) -> list[int]:
        if not effects and move.done.phase == "frozen":
            compared.update(ids)
        return await differing(ids, effects=effects)

    move._differing = recording  # type: ignore[method-assign]
    await move.run()
    assert errors(databases, "a") == ["last"] * 5 and len(compared) == 5


async def test_frozen_source_is_compared_again_while_duplicates_are_being_recorded(
    databases: ShardDatabases, move: SourceMove
) -> None:
    before_phase(move, "frozen", lambda: change_receipts(databases, "last"))
    copy, copies = move._copy_last_changes, 0
    duplicate = (
        "INSERT INTO webhook_deliveries (receipt_id, fingerprint, same_body) "
        "SELECT min(id), 'x', true FROM webhook_receipts"
    )

    async def copy_and_record() -> set[int]:
        nonlocal copies
        changed = await copy()
        copies += 1
        if copies == 1:
            run_sql(databases.addresses["main"], duplicate)
        return changed

    move._copy_last_changes = copy_and_record  # type: ignore[method-assign]
    await move.run()
    assert copies == 2 and len(databases.rows("a", "SELECT * FROM webhook_deliveries")) == 1
