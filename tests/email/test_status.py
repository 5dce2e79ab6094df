"""The status is a function of the facts: neither their order nor their repetition changes a row."""

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehook.config.settings import Settings
from oncehook.email import Email, status, suppressions
from oncehook.email.readers import normalise
from oncehook.email.status import Fact
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.counts import Repetitions
from tests.support.email_cases import PAYLOADS
from tests.support.email_facts import (
    POLICY,
    clear_tables,
    email_tables,
    examples,
    make_fact,
    make_facts,
    make_history,
    record_facts,
    row_versions,
)
from tests.support.odd_payloads import mangled

pytestmark = pytest.mark.anyio


STATES = ["queued", "delivered", "bounced", "bounced", "complained", "opened", "clicked", "unsubscribed", "unknown"]


ROWS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(STATES),
    st.sampled_from(["hard", "soft", None]),
    st.integers(0, 1),
    st.integers(0, 12),
)


HISTORIES = st.lists(ROWS, min_size=8, max_size=24, unique=True)


@pytest.mark.system  # 200 examples take most of a second
@given(rows=HISTORIES, seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_derived_statuses_ignore_the_order_and_repetition_of_facts(rows: Any, seed: int) -> None:
    facts = make_facts(rows)
    shuffled = facts + random.Random(seed).choices(facts, k=len(facts))
    random.Random(seed).shuffle(shuffled)
    assert status.derive_statuses(shuffled) == status.derive_statuses(facts)
    for to in {fact.recipient for fact in facts}:
        about = [fact for fact in facts if fact.recipient == to]
        assert suppressions.earliest(list(reversed(about)), POLICY) == suppressions.earliest(about, POLICY)


@given(rows=HISTORIES, seed=st.integers(0, 2**32))
@examples(5)
def test_tables_are_identical_for_any_order_and_repetition(database: str, rows: Any, seed: int) -> None:
    asyncio.run(assert_order_makes_no_difference(database, make_facts(rows), random.Random(seed)))


@pytest.mark.torture
@given(rows=HISTORIES, seed=st.integers(0, 2**32))
@examples(15)
def test_tables_are_identical_for_any_order_and_repetition_at_length(database: str, rows: Any, seed: int) -> None:
    asyncio.run(assert_order_makes_no_difference(database, make_facts(rows), random.Random(seed)))


async def assert_order_makes_no_difference(database: str, facts: list[Fact], chance: random.Random) -> None:
    store = make_store(Settings(database=database))
    await store.open()
    try:
        clear_tables(database)
        await record_facts(store, facts)
        first = email_tables(database)
        clear_tables(database)
        shuffled = facts + chance.choices(facts, k=len(facts))
        chance.shuffle(shuffled)
        while shuffled:
            size = chance.randint(1, 5)
            await record_facts(store, shuffled[:size])
            shuffled = shuffled[size:]
        assert email_tables(database) == first
        email = Email.of(store, Settings(email_soft_bounces=3))
        assert (await email.verify()).differences == []
    finally:
        await store.close()


async def test_facts_that_are_recorded_twice_change_no_row(store: Store, database: str) -> None:
    facts = make_history(400)
    await record_facts(store, facts)
    before = email_tables(database), row_versions(database)
    for start in range(0, len(facts), 150):
        await record_facts(store, facts[start : start + 150])
    assert (email_tables(database), row_versions(database)) == before


async def test_concurrent_workers_neither_deadlock_nor_lose_a_fact(store: Store, database: str) -> None:
    chance = random.Random(5)
    types = ["delivered", "opened", "bounced", "complained"]
    rows = [(n % 400 + 1, types[n % 4], "hard" if n % 4 == 2 else None, n % 3, n) for n in range(4800)]
    facts = make_facts(rows)
    chance.shuffle(facts)

    async def work(number: int) -> None:
        shuffled = facts[number::8]
        for start in range(0, len(shuffled), 300):
            await record_facts(store, shuffled[start : start + 300])

    await asyncio.gather(*map(work, range(8)))
    together = email_tables(database)
    clear_tables(database)
    await record_facts(store, facts)
    assert email_tables(database) == together


@pytest.mark.parametrize("provider", PAYLOADS)
@given(data=st.data())
@examples(1)
def test_both_databases_store_the_facts_of_any_payload(database: str, provider: str, data: Any) -> None:
    asyncio.run(
        assert_facts_are_stored(database, provider, data.draw(st.lists(mangled(provider), min_size=20, max_size=40)))
    )


@pytest.mark.torture
@pytest.mark.parametrize("provider", PAYLOADS)
@given(data=st.data())
@examples(4)
def test_both_databases_store_the_facts_of_any_payload_at_length(database: str, provider: str, data: Any) -> None:
    asyncio.run(
        assert_facts_are_stored(database, provider, data.draw(st.lists(mangled(provider), min_size=20, max_size=40)))
    )


async def assert_facts_are_stored(database: str, provider: str, payloads: list[Any]) -> None:
    now = datetime.now(UTC)
    events = [event for n, one in enumerate(payloads) for event in normalise(provider, one, event_id=f"evt_{n}")]
    facts = [status.fact_of(event, "ses", provider, 1, event.occurred_at or now) for event in events]
    store = make_store(Settings(database=database))
    await store.open()
    try:
        await record_facts(store, facts)
        assert (await Email.of(store, Settings(email_soft_bounces=3)).verify()).differences == []
    finally:
        await store.close()


async def assert_repeated_facts_change_nothing(store: Store, database: str, count: int) -> None:
    facts = make_history(count)
    for start in range(0, len(facts), 500):
        await record_facts(store, facts[start : start + 500])
    before, rows = email_tables(database), row_versions(database)
    chance = random.Random(3)
    for _ in range(2):
        shuffled = chance.sample(facts, len(facts))
        for start in range(0, len(shuffled), 500):
            await record_facts(store, shuffled[start : start + 500])
    assert email_tables(database) == before
    assert row_versions(database) == rows


async def test_replaying_all_events_twice_changes_no_row(store: Store, database: str) -> None:
    await assert_repeated_facts_change_nothing(store, database, 5_000)


@pytest.mark.torture
async def test_replaying_many_events_twice_changes_no_row(
    store: Store, database: str, repetitions: Repetitions
) -> None:
    await assert_repeated_facts_change_nothing(store, database, repetitions(20_000, 100_000))
    assert (await Email.of(store, Settings(email_soft_bounces=3)).verify()).differences == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([("bounced", 0, "hard"), ("delivered", 5, None)], ("bounced", "hard")),
        ([("bounced", 0, "soft"), ("delivered", 5, None)], ("delivered", None)),
        ([("queued", 1, None), ("sent", 1, None)], ("sent", None)),
        ([("delivered", 0, None), ("opened", 5, None)], ("delivered", None)),
        ([("opened", 0, None)], (None, None)),
    ],
)
def test_status_is_that_of_the_greatest_fact(facts: list[Any], expected: tuple[str | None, str | None]) -> None:
    made = [
        make_fact(number, type_, day, bounce=bounce, message_id="m")
        for number, (type_, day, bounce) in enumerate(facts)
    ]
    (row,) = status.derive_statuses(made).values()
    assert (row.status, row.bounce) == expected


def test_fact_without_a_message_has_no_status() -> None:
    assert status.derive_statuses([make_fact(1, "complained", message_id="")]) == {}


def test_first_open_and_last_event_are_kept() -> None:
    (row,) = status.derive_statuses(
        [make_fact(number, "opened", day, message_id="m") for number, day in enumerate((3, 1, 2))]
    ).values()
    assert (row.opened_at or "")[:10] == "2025-11-02" and row.last_at[:10] == "2025-11-04"
