"""Queries about effects, noops and entities, on every store."""

import json
from typing import Any

import pytest

from oncehook.model.effect import EffectFilter, EffectState, SettledEffect
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store

pytestmark = pytest.mark.anyio

SEND = [EffectTarget("function", "send", 30.0)]


async def write(store: Store, query: str, parameters: Any) -> int:
    """Run one of the outbox's statements in a transaction of a handler, and return the number of its rows."""
    transaction = store.transaction()
    rows = await transaction.run_query(lambda sql: sql[query], json.dumps(parameters))
    assert await transaction.settle([])
    return len(rows)


async def record_effect(store: Store, key: str, **changes: Any) -> None:
    fields = {"scope": "stripe", "kind": "function", "target": "send", "args": "{}", "source": "stripe", "receipt": 7}
    assert await write(store, "record_effects", [fields | {"key": key} | changes]) == 1


def state(name: str, event_id: str, at: str, *, is_terminal: bool = False) -> dict[str, Any]:
    return {
        "scope": "stripe", "kind": "invoice", "id": "in_1", "state": name, "at": at, "version": None,
        "is_terminal": is_terminal, "event_id": event_id, "receipt": 7,
    }  # fmt: skip


async def test_key_belongs_to_the_receipt_that_recorded_it_first(store: Store) -> None:
    await record_effect(store, "mail:1")
    assert await store.effects.recorded_by("stripe", "mail:1") == 7
    assert await store.effects.recorded_by("github", "mail:1") is None


async def test_counts_are_grouped_by_status_and_can_be_bounded(store: Store) -> None:
    for key in ("a", "b", "c"):
        await record_effect(store, key)
    assert await store.effects.counts() == {"waiting": 3}
    bounded = await store.effects.bounded_counts(2)
    assert (bounded["waiting"], bounded["failed"]) == (2, 0)


async def test_once_keys_are_not_counted_as_effects(store: Store) -> None:
    await record_effect(store, "once:1", kind="once")
    assert await store.effects.counts() == {}


async def test_failed_effects_are_counted_by_whether_they_can_be_replayed(store: Store) -> None:
    await record_effect(store, "a")
    await record_effect(store, "b", args=None)
    for effect in await store.effects.lease(10, "relay", SEND):
        await store.effects.settle([SettledEffect(effect.id, effect.lease, EffectState.FAILED, error="gone")])
    assert await store.effects.count_failed(EffectFilter()) == (1, 1)
    assert await store.effects.count_failed(EffectFilter(source="github")) == (0, 0)


async def test_noops_are_listed_per_receipt_and_counted_per_reason(store: Store) -> None:
    noop = {"receipt": 7, "source": "stripe", "reason": "stale", "scope": "stripe", "key": "invoice:in_1"}
    assert await write(store, "note_noops", [noop, noop | {"reason": "effect", "key": "mail:1"}]) == 2
    assert [(row.reason, row.key) for row in await store.effects.noops(7)] == [
        ("stale", "invoice:in_1"),
        ("effect", "mail:1"),
    ]
    counts = {(row.source, row.reason): row.noops for row in await store.effects.noop_counts()}
    assert counts == {("stripe", "stale"): 1, ("stripe", "effect"): 1}


async def test_entity_has_the_newest_state_in_any_order_of_events(store: Store) -> None:
    assert await store.effects.entity("stripe", "invoice", "in_1") is None
    assert await write(store, "advance", state("paid", "evt_2", "2026-11-15T12:00:00Z")) == 1
    assert await write(store, "advance", state("open", "evt_1", "2026-11-15T11:00:00Z")) == 0, "a stale state"
    entity = await store.effects.entity("stripe", "invoice", "in_1")
    assert entity is not None and (entity.state, entity.event_id) == ("paid", "evt_2")


async def test_terminal_state_is_replaced_only_by_a_newer_terminal_state(store: Store) -> None:
    assert await write(store, "advance", state("void", "evt_1", "2026-11-15T11:00:00Z", is_terminal=True)) == 1
    assert await write(store, "advance", state("paid", "evt_2", "2026-11-15T12:00:00Z")) == 0
    assert await write(store, "advance", state("gone", "evt_3", "2026-11-15T13:00:00Z", is_terminal=True)) == 1
