"""Paused sources on every store."""

import json

import pytest

from oncehook.store import backlog
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.stores import event_ids, open_store

pytestmark = pytest.mark.anyio


async def lease(store: Store, limit: int = 10) -> list[str]:
    return sorted(event_ids(await store.leases.take(limit, 30, "test")))


async def test_paused_source_is_not_leased_by_any_process_or_after_a_restart(database: str, rows: Rows) -> None:
    async with open_store(database) as store, open_store(database) as other:
        assert await lease(other) == []  # the other process has refreshed its pauses before this one
        assert await store.pauses.pause("stripe", "jane") and not await store.pauses.pause("stripe", "joe")
        await store.claims.insert([make_claim("a"), make_claim("b", source="github"), make_claim("c", serial_key="k")])
        await store.claims.insert([make_claim("d", source="github", serial_key="k")])
        assert await lease(other) == ["b", "d"]
    async with open_store(database) as later:
        assert await lease(later) == []
        assert [(row.source, row.actor) for row in await later.pauses.active()] == [("stripe", "jane")]
        assert await later.pauses.resume("stripe", "joe") and not await later.pauses.resume("stripe", "joe")
        assert await lease(later) == ["a", "c"]
    audited = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    detail = json.dumps({"source": "stripe"})
    assert audited == [("jane", "pause", detail), ("joe", "resume", detail)]


async def test_serial_keys_of_a_paused_source_do_not_block_other_sources(database: str) -> None:
    async with open_store(database) as store:
        await store.claims.insert([make_claim(f"p{n:03}", source="a", serial_key=f"k{n:03}") for n in range(400)])
        await store.claims.insert([make_claim(f"w{n}", source="b", serial_key=f"k{n}") for n in range(5)])
        await store.pauses.pause("a", "me")
        assert await lease(store, 2) == ["w0", "w1"]
        assert await lease(store, 2) == ["w2", "w3"]
        assert await lease(store, 2) == ["w4"]


async def test_receipt_that_is_due_before_the_floor_is_leased_after_a_refresh(
    database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "WINDOW", 7)
    monkeypatch.setattr(backlog, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(backlog, "SEARCH_INTERVAL_FACTOR", 0)
    async with open_store(database) as store:
        for n in range(30):
            await store.claims.insert([make_claim(f"p{n}")])
        await store.claims.insert([make_claim("late", source="github")])
        await store.pauses.pause("stripe", "me")
        assert await lease(store) == ["late"]
        await store.claims.insert([make_claim("later", source="github")])
        first = rows("SELECT min(received_at) FROM webhook_receipts")[0][0]
        rows(f"UPDATE webhook_receipts SET received_at = '{first}' WHERE event_id = 'later'")
        assert await lease(store) == ["later"]
        assert await lease(store) == []


async def test_pause_ends_by_the_clock_of_the_database(database: str, rows: Rows) -> None:
    async with open_store(database) as store:
        assert await store.pauses.pause("stripe", "jane", reason="moving", seconds=3600.0)
        (pause,) = await store.pauses.active()
        assert pause.reason == "moving" and pause.ends_at is not None and pause.ends_at > pause.paused_at
        await store.claims.insert([make_claim("a"), make_claim("b", serial_key="k")])
        assert await lease(store) == []
        assert not await store.pauses.pause("stripe", "joe", seconds=1.0)
        rows("UPDATE webhook_pauses SET ends_at = paused_at")  # the hour is over
        assert await store.pauses.active() == []
    async with open_store(database) as later:
        assert await lease(later) == ["a", "b"]
    assert rows("SELECT count(*) FROM webhook_pauses") == [(0,)]
    automatic = rows("SELECT action, detail FROM webhook_audit WHERE actor = 'oncehook'")
    assert [(action, json.loads(detail)["source"]) for action, detail in automatic] == [("resume", "stripe")]


async def test_source_can_be_paused_again_after_its_pause_ended(database: str, rows: Rows) -> None:
    async with open_store(database) as store:
        await store.pauses.pause("stripe", "jane", reason="moving", seconds=3600.0)
        rows("UPDATE webhook_pauses SET ends_at = paused_at")
        assert await store.pauses.pause("stripe", "joe")
        (pause,) = await store.pauses.active()
        assert (pause.actor, pause.reason, pause.ends_at) == ("joe", None, None)
