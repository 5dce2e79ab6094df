"""Queries about effects, noops and entities, on every store."""

import itertools
import json
from typing import Any

import pytest

from oncehook.model.effect import EffectFilter, EffectState, SettledEffect, StoredEntity
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store
from tests.support.events import Rows

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
    await record_effect(store, "mail:2", receipt=8)
    await record_effect(store, "mail:1", scope="github", receipt=9)
    assert await store.effects.recorded_by("stripe", "mail:1") == 7
    assert await store.effects.recorded_by("stripe", "mail:2") == 8
    assert await store.effects.recorded_by("github", "mail:1") == 9
    assert await store.effects.recorded_by("github", "mail:2") is None


async def test_counts_are_grouped_by_status_and_can_be_bounded(store: Store) -> None:
    for key in ("a", "b", "c"):
        await record_effect(store, key)
    assert await store.effects.counts() == {"waiting": 3}
    bounded = await store.effects.bounded_counts(2)
    assert (bounded["waiting"], bounded["failed"]) == (2, 0)


async def test_each_status_is_counted_separately_and_without_once_keys(store: Store, rows: Rows) -> None:
    numbers = {state.value: number for number, state in enumerate(EffectState, 1)}
    for status, number in numbers.items():
        for n in range(number):
            await record_effect(store, f"{status} {n}")
        await record_effect(store, f"{status} once", kind="once")
        rows(f"UPDATE webhook_effects SET status = '{status}' WHERE key LIKE '{status} %'")
    assert await store.effects.counts() == numbers
    assert await store.effects.bounded_counts(100) == numbers
    assert await store.effects.bounded_counts(2) == {status: min(number, 2) for status, number in numbers.items()}


async def test_once_keys_are_not_counted_as_effects(store: Store) -> None:
    await record_effect(store, "once:1", kind="once")
    assert await store.effects.counts() == {}


async def test_failed_effects_are_counted_by_whether_they_can_be_replayed(store: Store) -> None:
    await record_effect(store, "a")
    await record_effect(store, "b", args=None)
    for effect in await store.effects.lease(10, "relay", SEND):
        await store.effects.settle([SettledEffect(effect.id, effect.lease, EffectState.FAILED, error="gone")])
    await record_effect(store, "waiting")
    await record_effect(store, "waiting without arguments", args=None)
    assert await store.effects.count_failed(EffectFilter()) == (1, 1)
    assert await store.effects.count_failed(EffectFilter(source="stripe", target="send")) == (1, 1)
    assert await store.effects.count_failed(EffectFilter(source="github")) == (0, 0)
    assert await store.effects.count_failed(EffectFilter(target="publish")) == (0, 0)


async def test_noops_are_listed_per_receipt_and_counted_per_reason(store: Store) -> None:
    noop = {"receipt": 7, "source": "stripe", "reason": "stale", "scope": "stripe", "key": "invoice:in_1"}
    assert await write(store, "note_noops", [noop, noop | {"reason": "effect", "key": "mail:1"}]) == 2
    assert await write(store, "note_noops", [noop | {"receipt": 8, "source": "github", "key": "push:1"}]) == 1
    assert [(row.reason, row.key) for row in await store.effects.noops(7)] == [
        ("stale", "invoice:in_1"),
        ("effect", "mail:1"),
    ]
    counts = {(row.source, row.reason): row.noops for row in await store.effects.noop_counts()}
    assert counts == {("stripe", "stale"): 1, ("stripe", "effect"): 1, ("github", "stale"): 1}


async def test_entity_has_the_newest_state_in_any_order_of_events(store: Store) -> None:
    assert await store.effects.entity("stripe", "invoice", "in_1") is None
    assert await write(store, "advance", state("paid", "evt_2", "2026-11-15T12:00:00Z")) == 1
    assert await write(store, "advance", state("open", "evt_1", "2026-11-15T11:00:00Z")) == 0, "a stale state"
    entity = await store.effects.entity("stripe", "invoice", "in_1")
    assert entity is not None and (entity.state, entity.event_id) == ("paid", "evt_2")


HISTORY: list[tuple[bool, str | None, int | None, str]] = [
    (False, None, None, "evt_b"),
    (False, None, -3, "evt_a"),
    (False, None, 2, "evt_a"),
    (False, "2026-11-15T11:00:00Z", None, "evt_c"),
    (False, "2026-11-15T11:00:00Z", 2, "evt_a"),
    (False, "2026-11-15T11:00:00Z", 2, "evt_b"),
    (False, "2026-11-15T12:00:00Z", 1, "evt_a"),
    (True, None, None, "evt_a"),
    (True, "2026-11-15T10:00:00Z", None, "evt_a"),
]
"""Whether an event is terminal, its time, its version and its id, from the oldest to the newest."""


async def test_entity_is_the_whole_newest_event_of_every_two(store: Store, rows: Rows) -> None:
    """Compared by terminal, time, version and id, whichever arrives first and whatever is missing."""
    transaction = store.transaction()
    pairs = list(itertools.permutations(range(len(HISTORY)), 2))
    for pair in pairs:
        for number in pair:
            is_terminal, at, version, event_id = HISTORY[number]
            fields = {"kind": "pair", "id": str(pair), "receipt": number, "version": version, "at": at}
            parameters = state(f"state {number}", event_id, "", is_terminal=is_terminal) | fields
            moved = await transaction.run_query(lambda sql: sql["advance"], json.dumps(parameters))
            assert len(moved) == (number == pair[0] or pair[1] > pair[0]), f"{pair}: {number} was stored wrongly"
    assert await transaction.settle([])
    found = {id: tuple(row) for id, *row in rows("SELECT id, state, event_id, receipt_id FROM webhook_entities")}
    assert found == {str(pair): (f"state {max(pair)}", HISTORY[max(pair)][3], max(pair)) for pair in pairs}
    for pair in pairs:
        entity = await store.effects.entity("stripe", "pair", str(pair))
        assert entity is not None
        at = None if entity.at is None else entity.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        assert (entity.is_terminal, at, entity.version, entity.event_id) == HISTORY[max(pair)]


async def test_replay_of_the_newest_event_stores_its_state_again(store: Store) -> None:
    for is_terminal, at, version, event_id in HISTORY:
        parameters = state("paid", event_id, "", is_terminal=is_terminal) | {"version": version, "at": at}
        assert await write(store, "advance", parameters) == 1
        assert await write(store, "advance", parameters | {"state": "void"}) == 1, "a replay is not stale"
        entity = await store.effects.entity("stripe", "invoice", "in_1")
        assert entity is not None and entity.state == "void"


async def test_entity_is_found_by_its_scope_kind_and_id(store: Store) -> None:
    places = list(itertools.product(("stripe", "github"), ("invoice", "order"), ("in_1", "in_2")))
    for scope, kind, id in places:
        fields = {"scope": scope, "kind": kind, "id": id}
        assert await write(store, "advance", state(f"{scope} {kind} {id}", "evt", "2026-11-15T12:00:00Z") | fields) == 1
    for scope, kind, id in places:
        entity = await store.effects.entity(scope, kind, id)
        assert entity is not None and entity.state == f"{scope} {kind} {id}"
        found = await store.email.query("entities_of", {"scope": scope, "id": id}, StoredEntity)
        assert [entity.state for entity in found] == [f"{scope} invoice {id}", f"{scope} order {id}"]


async def test_terminal_state_is_replaced_only_by_a_newer_terminal_state(store: Store) -> None:
    assert await write(store, "advance", state("void", "evt_1", "2026-11-15T11:00:00Z", is_terminal=True)) == 1
    assert await write(store, "advance", state("paid", "evt_2", "2026-11-15T12:00:00Z")) == 0
    assert await write(store, "advance", state("gone", "evt_3", "2026-11-15T13:00:00Z", is_terminal=True)) == 1
