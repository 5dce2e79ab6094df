"""Effects on every store."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook.model.effect import EffectFilter, EffectState, SettledEffect
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


SEND = [EffectTarget("function", "send", 30.0)]


async def record(store: Store, *keys: str, **changes: Any) -> None:
    facts = {"scope": "stripe", "kind": "function", "target": "send", "args": "{}", "source": "stripe", "receipt": 1}
    transaction = store.transaction()
    rows_json = json.dumps([{**facts, "key": key, **changes} for key in keys])
    rows = await transaction.run_query(lambda sql: sql["record_effects"], rows_json)
    assert len(rows) == len(keys)
    assert await transaction.settle([])


async def test_effect_is_leased_by_one_of_many_relays(store: Store) -> None:
    await record(store, *(f"k{n}" for n in range(50)))
    leased = await asyncio.gather(*(store.effects.lease(10, f"w{n}", SEND) for n in range(8)))
    ids = [effect.id for batch in leased for effect in batch]
    assert len(ids) == len(set(ids)) == 50
    assert await store.effects.lease(10, "late", SEND) == []


async def test_lease_takes_only_effects_of_the_given_kinds_and_targets(store: Store) -> None:
    await record(store, "a")
    await record(store, "b", target="other")
    await record(store, "c", kind="http", target="https://example.com")
    for targets, expected in (
        ([EffectTarget("function", "unknown", 1.0), EffectTarget("topic", "send", 1.0)], []),
        ([EffectTarget("http", None, 1.0), *SEND], ["a", "c"]),
        ([EffectTarget("function", None, 5.0), *SEND], ["b"]),
        ([], []),
    ):
        assert [effect.key for effect in await store.effects.lease(10, "w", targets)] == expected


async def finish(store: Store, status: EffectState = EffectState.DONE, **more: Any) -> None:
    leased = await store.effects.lease(100, "the test", SEND)
    done = [SettledEffect(effect.id, effect.lease, status, **more) for effect in leased]
    assert len(await store.effects.settle(done)) == len(leased)


async def test_retrying_effect_is_due_by_the_clock_of_the_database(store: Store, rows: Rows) -> None:
    await record(store, "a")
    await finish(store, EffectState.RETRYING, after=3600.0, error="later\x00")
    assert await store.effects.lease(10, "w", SEND) == []
    [row] = await store.effects.find(EffectFilter(status="retrying"), limit=10)
    assert row.last_error is not None and row.last_error.startswith("later")
    rows("UPDATE webhook_effects SET next_attempt_at = created_at RETURNING id")
    assert [effect.attempt for effect in await store.effects.lease(10, "w", SEND)] == [2]


async def test_effect_is_settled_once_and_only_under_its_lease(store: Store) -> None:
    await record(store, "a")
    [effect] = await store.effects.lease(1, "w", SEND)
    assert await store.effects.settle([SettledEffect(effect.id, effect.lease + 1, EffectState.DONE)]) == set()
    assert await store.effects.settle([SettledEffect(effect.id, effect.lease, EffectState.DONE)]) == {effect.id}
    assert await store.effects.settle([SettledEffect(effect.id, effect.lease, EffectState.FAILED)]) == set()
    assert await store.effects.counts() == {"done": 1}


async def test_lease_lasts_as_long_as_that_of_its_own_target(store: Store, rows: Rows) -> None:
    await record(store, "a")
    longer = [EffectTarget("function", "other", 3600.0), EffectTarget("http", None, 3600.0)]
    [effect] = await store.effects.lease(1, "relay", [*longer, *SEND])
    assert rows("SELECT worker FROM webhook_effects") == [("relay",)]
    await store.schema.move_times_back(20)
    assert await store.effects.expired(10, 0) == []
    await store.schema.move_times_back(20)
    assert [row.id for row in await store.effects.expired(10, 0)] == [effect.id]


async def test_effects_that_are_settled_together_get_their_own_results(store: Store, rows: Rows) -> None:
    await record(store, "a", "b", "c", "d")
    done, failed, retried, _ = await store.effects.lease(4, "relay", SEND)
    settled = [
        SettledEffect(done.id, done.lease, EffectState.DONE),
        SettledEffect(failed.id, failed.lease, EffectState.FAILED, error="never"),
        SettledEffect(retried.id, retried.lease, EffectState.RETRYING, after=60.0, error="later"),
    ]
    assert await store.effects.settle(settled) == {done.id, failed.id, retried.id}
    columns = "status, attempts, last_error, lease_until IS NULL, done_at IS NULL, next_attempt_at IS NULL"
    assert rows(f"SELECT {columns} FROM webhook_effects ORDER BY id") == [
        ("done", 1, None, True, False, True),
        ("failed", 1, "never", True, True, True),
        ("retrying", 1, "later", True, True, False),
        ("performing", 1, None, False, True, True),
    ]


async def test_released_effect_stays_in_quarantine_until_an_attempt_ends(store: Store) -> None:
    await record(store, "a")
    await finish(store, EffectState.RETRYING, after=0.0, crashed=True)
    for status, facts in (EffectState.RETRYING, {"uncharged": True}), (EffectState.RETRYING, {"after": 0.0}):
        assert await store.effects.lease(1, "w", SEND) == [], "it must not run beside others"
        [effect] = await store.effects.lease(1, "w", SEND, rescued=True)
        await store.effects.settle([SettledEffect(effect.id, effect.lease, status, **facts)])
    assert len(await store.effects.lease(1, "w", SEND)) == 1


async def test_find_filters_effects_by_each_condition_and_in_pages(store: Store) -> None:
    await record(store, *(f"k{n}" for n in range(5)))
    await record(store, "other", source="github", scope="github", target="publish", kind="topic", receipt=7)
    await finish(store)
    matches = {
        "status": await store.effects.find(EffectFilter(status="waiting"), limit=10),
        "source": await store.effects.find(EffectFilter(source="github"), limit=10),
        "target": await store.effects.find(EffectFilter(target="publish"), limit=10),
        "receipt": await store.effects.find(EffectFilter(receipt=7), limit=10),
        "key": await store.effects.find(EffectFilter(key="other"), limit=10),
    }
    assert {name: [row.key for row in rows] for name, rows in matches.items()} == {name: ["other"] for name in matches}
    ids = [row.id for row in matches["key"]]
    assert [row.id for row in await store.effects.find(EffectFilter(ids=tuple(ids)), limit=10)] == ids
    seen: list[str] = []
    before = None
    while page := await store.effects.find(EffectFilter(), limit=2, before=before):
        before = page[-1].id
        seen += [row.key for row in page]
    assert seen == ["other", "k4", "k3", "k2", "k1", "k0"]
    newest, *_, lowest = await store.effects.find(EffectFilter(), limit=4)
    window = await store.effects.find(EffectFilter(), limit=10, before=newest.id, down_to=lowest.id)
    assert [row.key for row in window] == ["k4", "k3", "k2"]


async def test_waiting_effects_are_counted_by_target(store: Store) -> None:
    await record(store, "a", "b")
    await record(store, "c", target="other")
    await store.effects.lease(1, "w", SEND)
    waiting = await store.effects.waiting()
    assert [(row.kind, row.target, row.effects, row.crashed) for row in waiting] == [
        ("function", "other", 1, 0),
        ("function", "send", 1, 0),
    ]
    assert all(row.lag >= 0 for row in waiting)


async def test_only_failed_effects_are_replayed_and_the_replay_is_audited(store: Store, rows: Rows) -> None:
    await record(store, "a", "b")
    await finish(store, EffectState.FAILED, error="no")
    await record(store, "c")
    await finish(store)
    await record(store, "d")
    ids = [row[0] for row in rows("SELECT id FROM webhook_effects ORDER BY id")]
    assert await store.effects.replay(ids, "jane") == ids[:2]
    assert await store.effects.replay(ids, "jane") == []
    [(actor, action, detail)] = rows("SELECT actor, action, detail FROM webhook_audit")
    assert (actor, action, json.loads(detail)) == ("jane", "replay effects", {"count": 2, "effects": ids[:2]})
    assert rows("SELECT status, attempts, replays FROM webhook_effects ORDER BY id") == [
        ("waiting", 0, 1),
        ("waiting", 0, 1),
        ("done", 1, 0),
        ("waiting", 0, 0),
    ]


async def test_replay_leaves_other_failed_effects_and_forgets_what_failed(store: Store, rows: Rows) -> None:
    """A replayed effect runs at once, beside others, although it had crashed. One without arguments cannot run."""
    await record(store, "a", "b")
    await record(store, "erased", args=None)
    await finish(store, EffectState.FAILED, error="it crashed", crashed=True)
    a, b, erased = (row[0] for row in rows("SELECT id FROM webhook_effects ORDER BY id"))
    assert await store.effects.replay([a, erased], "jane") == [a]
    columns = "id, status, crashes, last_error"
    assert rows(f"SELECT {columns} FROM webhook_effects ORDER BY id") == [
        (a, "waiting", 0, None),
        (b, "failed", 1, "it crashed"),
        (erased, "failed", 1, "it crashed"),
    ]
    assert [effect.id for effect in await store.effects.lease(10, "w", SEND)] == [a]


async def test_unknown_effect_status_is_rejected(store: Store, rows: Rows) -> None:
    await record(store, "a")
    with pytest.raises(Exception, match=r"(?i)check"):
        rows("UPDATE webhook_effects SET status = 'sent' RETURNING id")
    for state in EffectState:
        rows(f"UPDATE webhook_effects SET status = '{state}' RETURNING id")


async def test_pruning_clears_arguments_and_deletes_keys_separately(store: Store, rows: Rows) -> None:
    await record(store, "done", args='{"to":"jane"}')
    await finish(store)
    await record(store, "dead", args='{"to":"jane"}')
    await finish(store, EffectState.FAILED, error="no")
    await record(store, "waiting", args='{"to":"jane"}')
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        assert await pruning.clear_effects({"other": soon}, 10) == 0
        assert await pruning.clear_effects({"stripe": soon - timedelta(hours=2)}, 10) == 0
        assert await pruning.clear_effects({"stripe": soon}, 10) == 1
        assert rows("SELECT key FROM webhook_effects WHERE args IS NULL") == [("done",)]
        assert await pruning.prune_effects(soon - timedelta(hours=2), 10) == 0
        assert await pruning.prune_effects(soon, 10) == 1
    assert rows("SELECT key FROM webhook_effects ORDER BY id") == [("dead",), ("waiting",)]


async def test_key_of_an_effect_that_was_done_lately_is_kept_however_old_it_is(store: Store, rows: Rows) -> None:
    await record(store, "done", "done lately")
    await finish(store)
    await store.schema.move_times_back(100)
    rows("UPDATE webhook_effects SET done_at = '2100-01-01T00:00:00.000000Z' WHERE key = 'done lately' RETURNING id")
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        before = datetime.now(UTC) - timedelta(seconds=50)
        assert await pruning.prune_effects(before, 10) == 1
    assert rows("SELECT key FROM webhook_effects") == [("done lately",)]


async def test_erasing_a_receipt_clears_the_arguments_of_its_effects(store: Store, rows: Rows) -> None:
    (claimed,) = await store.claims.insert([make_claim()])
    await record(store, "mine", args='{"to":"jane"}', receipt=claimed.receipt)
    await record(store, "others", args='{"to":"joe"}', receipt=claimed.receipt + 1)
    await store.retention.erase([claimed.receipt], "jane", "admin", "{}")
    assert rows("SELECT key, args FROM webhook_effects ORDER BY id") == [("mine", None), ("others", '{"to":"joe"}')]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_transactions_that_record_keys_in_another_order_wait_for_each_other(store: Store, rows: Rows) -> None:
    """Both wait for a third transaction in the middle of their keys. Each must hold none that the other needs then."""
    facts = {"scope": "s", "kind": "function", "target": "send", "args": "{}", "source": "stripe", "receipt": 1}

    async def write(transaction: Transaction, *keys: str) -> int:
        rows_json = json.dumps([{**facts, "key": key} for key in keys])
        return len(await transaction.run_query(lambda sql: sql["record_effects"], rows_json))

    async def once(*keys: str) -> int:
        transaction = store.transaction()
        new = await write(transaction, *keys)
        assert await transaction.settle([])
        return new

    third = store.transaction()
    assert await write(third, "m") == 1
    both = [asyncio.create_task(once("a", "m", "z")), asyncio.create_task(once("z", "m", "a"))]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await eventually(lambda: rows(waiting) == [(2,)], "both transactions wait")
    await third.rollback()
    assert sorted(await asyncio.gather(*both)) == [0, 3]


async def test_concurrent_transactions_that_record_the_same_keys_do_not_deadlock(store: Store, rows: Rows) -> None:
    facts = {"scope": "s", "kind": "function", "target": "send", "args": "{}", "source": "stripe", "receipt": 1}

    async def once(keys: list[str]) -> int:
        transaction = store.transaction()
        rows_json = json.dumps([{**facts, "key": key} for key in keys])
        new = await transaction.run_query(lambda sql: sql["record_effects"], rows_json)
        assert await transaction.settle([])
        return len(new)

    for round_ in range(20):
        keys = [f"{round_}:{n}" for n in range(20)]
        assert sum(await asyncio.gather(*(once(keys), once(keys[::-1]), once(keys[10:] + keys[:10])))) == 20
    assert rows("SELECT count(*) FROM webhook_effects") == [(400,)]
