"""The fold: in any order and however often a history is told, the tables are the same, row by row."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oncehook import ConfigurationError, Inbox
from oncehook.config.settings import Settings
from oncehook.email import Blocked, Email, status, suppressions
from oncehook.email.readers import normalise
from oncehook.email.status import Fact
from oncehook.email.suppressions import Policy, SuppressionChange
from oncehook.operations.prune import prune_email
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.email.test_events import mangled
from tests.support.email_payloads import PAYLOADS
from tests.support.events import Rows
from tests.support.servers import ask

pytestmark = pytest.mark.anyio

POLICY = Policy(soft_bounces=3)
DAY0 = datetime(2025, 11, 1, tzinfo=UTC)
TABLES = {
    "facts": "SELECT source, key, type, bounce, message_id, recipient, occurred_at, reason FROM webhook_email_events "
    "ORDER BY source, key",
    "status": "SELECT * FROM webhook_email_status ORDER BY message_id, recipient, source",
    "suppressions": "SELECT * FROM webhook_suppressions ORDER BY address",
}


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=database, concurrency=8))
    await store.open()
    yield store
    await store.close()


def fact(number: int, type_: str, day: float = 0, to: str = "jane@example.com", **more: Any) -> Fact:
    at = (DAY0 + timedelta(days=day)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    named = {"source": "ses", "key": f"k{number}", "message_id": f"m{number}", **more}
    return Fact(type=type_, recipient=to, occurred_at=at, domain="example.com", **named)


async def tell(store: Store, facts: list[Fact], policy: Policy = POLICY) -> None:
    """As the project's own handler does with a batch."""

    async def work(transaction: Any) -> None:
        new = await status.record(transaction, facts)
        await suppressions.suppress(transaction, new, policy)

    await store.email.transact(work)


def tables(database: str) -> dict[str, list[Any]]:
    return {name: ask(database, sql) for name, sql in TABLES.items()}


def clear(database: str) -> None:
    for table in ("webhook_email_events", "webhook_email_status", "webhook_suppressions"):
        change(database, f"DELETE FROM {table} WHERE true")


def change(database: str, sql: str) -> None:
    ask(database, sql + (" RETURNING 1" if database.startswith("p") else ""))


# -- histories ------------------------------------------------------------------------------------------------------


def make_facts(rows: list[tuple[int, str, str | None, int, int]]) -> list[Fact]:
    """Facts of few messages, recipients and moments, so that they meet; a key is a function of what it names."""
    return [
        fact(
            message,
            type_,
            day / 4,
            f"r{to}@example.com",
            bounce=bounce if type_ == "bounced" else None,
            key=f"{message} {type_} {bounce} {to} {day}",
            message_id=f"m{message}" if message else "",
            reason=f"{type_} {day}",
        )
        for message, type_, bounce, to, day in rows
    ]


STATES = ["queued", "delivered", "bounced", "bounced", "complained", "opened", "clicked", "unsubscribed", "unknown"]
ROWS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(STATES),
    st.sampled_from(["hard", "soft", None]),
    st.integers(0, 1),
    st.integers(0, 12),
)
HISTORIES = st.lists(ROWS, min_size=8, max_size=24, unique=True)
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # each example takes a database


def examples(number: int) -> settings:
    return settings(
        max_examples=number,
        deadline=None,
        phases=NO_SHRINKING,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@given(rows=HISTORIES, seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_the_fold_itself_knows_no_order_and_no_repetition(rows: Any, seed: int) -> None:
    facts = make_facts(rows)
    told = facts + random.Random(seed).choices(facts, k=len(facts))
    random.Random(seed).shuffle(told)
    assert status.fold(told) == status.fold(facts)
    for to in {one.recipient for one in facts}:
        about = [one for one in facts if one.recipient == to]
        assert suppressions.earliest(list(reversed(about)), POLICY) == suppressions.earliest(about, POLICY)


@given(rows=HISTORIES, seed=st.integers(0, 2**32))
@examples(5)
def test_any_order_and_any_repetition_gives_identical_tables(database: str, rows: Any, seed: int) -> None:
    asyncio.run(tell_both_ways(database, make_facts(rows), random.Random(seed)))


@pytest.mark.torture
@given(rows=HISTORIES, seed=st.integers(0, 2**32))
@examples(15)
def test_any_order_and_any_repetition_gives_identical_tables_at_length(database: str, rows: Any, seed: int) -> None:
    asyncio.run(tell_both_ways(database, make_facts(rows), random.Random(seed)))


async def tell_both_ways(database: str, facts: list[Fact], chance: random.Random) -> None:
    store = make_store(Settings(database=database))
    await store.open()
    try:
        clear(database)
        await tell(store, facts)
        first = tables(database)
        clear(database)
        told = facts + chance.choices(facts, k=len(facts))
        chance.shuffle(told)
        while told:
            size = chance.randint(1, 5)
            await tell(store, told[:size])
            told = told[size:]
        assert tables(database) == first
        email = Email.of(store, Settings(email_soft_bounces=3))
        assert (await email.verify()).differences == []
    finally:
        await store.close()


async def test_a_history_told_twice_changes_no_row(store: Store, database: str) -> None:
    facts = history(400)
    await tell(store, facts)
    before = tables(database), versions(database)
    for start in range(0, len(facts), 150):
        await tell(store, facts[start : start + 150])
    assert (tables(database), versions(database)) == before


def versions(database: str) -> list[Any]:
    """Which transaction wrote each row, where the database tells."""
    if database.startswith("sqlite"):
        return []
    return ask(database, "SELECT message_id, recipient, xmin::text, ctid::text FROM webhook_email_status ORDER BY 1, 2")


def history(count: int, seed: int = 7) -> list[Fact]:
    chance = random.Random(seed)
    types = ["queued", "delivered", "opened", "clicked", "bounced", "deferred", "complained"]
    rows = [
        (
            chance.randint(1, count // 4),
            chance.choice(types),
            chance.choice(["hard", "soft"]),
            0,
            chance.randint(0, 400),
        )
        for _ in range(count)
    ]
    return make_facts([(n, t, b if t == "bounced" else None, n % 50, day) for n, t, b, _, day in dict.fromkeys(rows)])


async def test_workers_that_fold_the_same_messages_at_once_neither_deadlock_nor_miss(
    store: Store, database: str
) -> None:
    chance = random.Random(5)
    types = ["delivered", "opened", "bounced", "complained"]
    rows = [(n % 400 + 1, types[n % 4], "hard" if n % 4 == 2 else None, n % 3, n) for n in range(4800)]
    facts = make_facts(rows)
    chance.shuffle(facts)

    async def work(number: int) -> None:
        told = facts[number::8]
        for start in range(0, len(told), 300):
            await tell(store, told[start : start + 300])

    await asyncio.gather(*map(work, range(8)))
    together = tables(database)
    clear(database)
    await tell(store, facts)
    assert tables(database) == together


@pytest.mark.parametrize("provider", PAYLOADS)
@given(data=st.data())
@examples(1)
def test_whatever_is_read_out_of_a_payload_both_databases_hold(database: str, provider: str, data: Any) -> None:
    asyncio.run(hold(database, provider, data.draw(st.lists(mangled(provider), min_size=20, max_size=40))))


@pytest.mark.torture
@pytest.mark.parametrize("provider", PAYLOADS)
@given(data=st.data())
@examples(4)
def test_whatever_is_read_out_of_a_payload_both_databases_hold_at_length(
    database: str, provider: str, data: Any
) -> None:
    asyncio.run(hold(database, provider, data.draw(st.lists(mangled(provider), min_size=20, max_size=40))))


async def hold(database: str, provider: str, payloads: list[Any]) -> None:
    now = datetime.now(UTC)
    events = [event for n, one in enumerate(payloads) for event in normalise(provider, one, event_id=f"evt_{n}")]
    facts = [status.fact_of(event, "ses", provider, 1, event.occurred_at or now) for event in events]
    store = make_store(Settings(database=database))
    await store.open()
    try:
        await tell(store, facts)
        assert (await Email.of(store, Settings(email_soft_bounces=3)).verify()).differences == []
    finally:
        await store.close()


# -- suppressions ---------------------------------------------------------------------------------------------------


async def test_the_earliest_reason_by_the_providers_time_is_kept_in_whatever_order(store: Store) -> None:
    email = Email.of(store, Settings())
    await tell(store, [fact(2, "complained", 2)])
    await tell(store, [fact(3, "unsubscribed", 3)])
    await tell(store, [fact(1, "bounced", 1, bounce="hard")])
    found = await email.suppression("jane@example.com")
    assert found is not None
    assert (found["reason"], found["event"], found["since"][:10]) == ("hard_bounce", "k1", "2025-11-02")


@pytest.mark.parametrize(
    ("days", "is_blocked"),
    [([0, 1, 2], True), ([2, 0, 1], True), ([0, 1], False), ([0, 10, 31], False), ([0, 20, 40, 45], True)],
)
async def test_soft_bounces_suppress_when_there_are_enough_within_a_month(
    store: Store, days: list[int], is_blocked: bool
) -> None:
    email = Email.of(store, Settings(email_soft_bounces=3))
    for number, day in enumerate(days):
        await tell(store, [fact(number, "bounced", day, bounce="soft")])
    assert bool(await email.can_send("jane@example.com")) is not is_blocked
    assert (await email.verify()).differences == []


async def test_soft_bounces_of_one_message_count_once(store: Store) -> None:
    email = Email.of(store, Settings())
    for number in range(9):
        await tell(store, [fact(number, "bounced", number, bounce="soft", message_id="m")])
    assert await email.can_send("jane@example.com")


async def test_two_that_count_soft_bounces_at_once_do_not_miss_each_other(store: Store) -> None:
    email = Email.of(store, Settings())
    for round_ in range(20):
        to = f"r{round_}@example.com"
        await asyncio.gather(
            *(tell(store, [fact(n, "bounced", n, to, bounce="soft", key=f"{round_} {n}")]) for n in range(3))
        )
        assert not await email.can_send(to)


async def test_a_person_adds_and_lifts_and_what_happened_before_no_longer_counts(store: Store, rows: Rows) -> None:
    email = Email.of(store, Settings())
    assert (await email.suppress("Jane@EXAMPLE.com", actor="ops", note="asked by phone"))["reason"] == "manual"
    found = await email.suppression("Jane@example.com")
    assert found is not None and (found["note"], found["actor"], found["event"]) == ("asked by phone", "ops", None)
    await tell(store, [fact(1, "bounced", 1, "jane@example.com", bounce="hard")])
    found = await email.suppression("Jane@example.com")
    assert found is not None and found["reason"] == "hard_bounce"  # the earlier of the two
    await email.allow("Jane@example.com", actor="ops", note="mended")
    assert await email.can_send("Jane@example.com")
    await tell(store, [fact(2, "bounced", 2, "jane@example.com", bounce="hard")])  # it happened before, and comes late
    assert await email.can_send("Jane@example.com")
    future = (datetime.now(UTC) - DAY0).days + 2
    await tell(store, [fact(3, "complained", future, "jane@example.com")])
    assert not await email.can_send("Jane@example.com")
    assert (await email.verify()).differences == []
    audit = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert audit == [("ops", "suppress"), ("ops", "allow")]
    assert "jane" not in str(rows("SELECT detail FROM webhook_audit")).lower()


async def test_the_last_that_a_person_did_counts_within_one_moment_and_in_a_clock_that_went_back(
    store: Store, database: str
) -> None:
    email, jane = Email.of(store, Settings()), "jane@example.com"
    for _ in range(5):  # on SQLite many of these are of one millisecond
        await email.suppress(jane, actor="ops")
        await email.allow(jane, actor="ops")
        assert await email.can_send(jane)
        assert (await email.suppress(jane, actor="ops"))["reason"] == "manual"
        assert not await email.can_send(jane)
    await email.allow(jane, actor="ops")
    ahead = "2099-01-01T00:00:00.000000Z"
    change(database, f"UPDATE webhook_suppressions SET removed_at = '{ahead}'")
    await email.suppress(jane, actor="ops")
    assert not await email.can_send(jane)
    await email.change([SuppressionChange("joe@example.com", since=ahead)], actor="ops")
    await email.allow("joe@example.com", actor="ops")
    assert await email.can_send("joe@example.com")
    assert (await email.verify()).differences == []


async def test_a_suppression_holds_however_the_address_is_spelled_unless_case_is_told_apart(store: Store) -> None:
    email = Email.of(store, Settings())
    await email.suppress("Jane@Example.com", actor="ops")
    for spelled in ("jane@example.com", "JANE@EXAMPLE.COM", "Jane <jAne@example.com>"):
        assert not await email.can_send(spelled)
    await email.allow("JANE@example.com", actor="ops")
    assert await email.can_send("Jane@Example.com")
    strict = Email.of(store, Settings(email_case_sensitive=True))
    await strict.suppress("Joe@example.com", actor="ops")
    assert not await strict.can_send("Joe@EXAMPLE.com")
    assert await strict.can_send("joe@example.com")


async def test_a_rejection_suppresses_where_the_address_is_the_reason(store: Store) -> None:
    email = Email.of(store, Settings())
    await tell(store, [fact(1, "rejected", 1, bounce="hard"), fact(2, "rejected", 1, "joe@example.com")])
    blocked = await email.can_send("jane@example.com")
    assert isinstance(blocked, Blocked) and (blocked.reason, blocked.event) == ("rejected", "k1")
    assert await email.can_send("joe@example.com")
    assert (await email.verify()).differences == []
    await email.allow("jane@example.com", actor="ops")
    assert await email.can_send("jane@example.com")


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
async def test_of_two_facts_of_one_moment_the_lesser_key_counts_in_either_order(
    store: Store, order: tuple[int, int]
) -> None:
    for number in order:  # each in a transaction of its own, so that the database compares
        await tell(store, [fact(number, "bounced", 1, bounce="hard")])
    blocked = await Email.of(store, Settings()).can_send("jane@example.com")
    assert isinstance(blocked, Blocked) and blocked.event == "k1"
    assert (await Email.of(store, Settings()).verify()).differences == []


async def test_soft_bounces_that_were_enough_still_are_when_the_first_ones_are_pruned(
    store: Store, database: str
) -> None:
    email = Email.of(store, Settings(email_soft_bounces=3))
    await tell(store, [fact(number, "bounced", number, bounce="soft") for number in (1, 2, 3)])
    assert not await email.can_send("jane@example.com")
    change(database, "DELETE FROM webhook_email_events WHERE key = 'k1'")
    await email.rebuild()
    blocked = await email.can_send("jane@example.com")
    assert isinstance(blocked, Blocked) and blocked.reason == "soft_bounces"


async def test_rejections_do_not_suppress_where_the_policy_leaves_them_out(store: Store) -> None:
    await tell(store, [fact(1, "rejected", 1, bounce="hard")], Policy.of(["hard_bounce"], 3))
    assert await Email.of(store, Settings()).can_send("jane@example.com")


ENTRIES = st.lists(st.sampled_from(["bounce", "late bounce", "add", "remove"]), min_size=1, max_size=8)


@given(entries=ENTRIES, seed=st.integers(0, 2**32))
@examples(5)
def test_additions_and_removals_are_entries_of_the_same_fold(database: str, entries: list[str], seed: int) -> None:
    asyncio.run(enter_both_ways(database, entries, random.Random(seed)))


@pytest.mark.torture
@given(entries=ENTRIES, seed=st.integers(0, 2**32))
@examples(15)
def test_additions_and_removals_are_entries_of_the_same_fold_at_length(
    database: str, entries: list[str], seed: int
) -> None:
    asyncio.run(enter_both_ways(database, entries, random.Random(seed)))


async def enter_both_ways(database: str, entries: list[str], chance: random.Random) -> None:
    """A person acts in the order of time, now; facts come whenever. Told at the end, they give the same row."""
    store = make_store(Settings(database=database))
    await store.open()
    email = Email.of(store, Settings())
    days = (datetime.now(UTC) - DAY0).days
    facts = [
        fact(n, "bounced", n if entry == "bounce" else days + 10 + n, bounce="hard", key=f"{seed_key(chance)} {n}")
        for n, entry in enumerate(entries) if "bounce" in entry
    ]  # fmt: skip
    try:
        outcomes = []
        for early in (True, False):
            clear(database)
            if early:
                await tell(store, chance.sample(facts, len(facts)))
            for entry in entries:
                if entry in ("add", "remove"):
                    await email.change([SuppressionChange("jane@example.com", remove=entry == "remove")], actor="ops")
            if not early:
                for one in chance.sample(facts, len(facts)):
                    await tell(store, [one])
            found = await email.suppression("jane@example.com")
            outcomes.append(found and (found["reason"], found["event"]))
            assert (await email.verify()).differences == []
        assert outcomes[0] == outcomes[1]
    finally:
        await store.close()


def seed_key(chance: random.Random) -> str:
    return f"{chance.getrandbits(32):08x}"


async def test_a_reason_that_the_policy_leaves_out_suppresses_nobody(store: Store) -> None:
    policy = Policy.of(["hard_bounce"], 5)
    await tell(store, [fact(1, "unsubscribed"), fact(2, "bounced", 1, "joe@example.com", bounce="hard")], policy)
    email = Email.of(store, Settings(email_suppress=("hard_bounce",)))
    assert await email.can_send("jane@example.com")
    assert not await email.can_send("joe@example.com")


async def test_a_lift_counts_after_what_is_known_from_a_clock_that_is_ahead(store: Store) -> None:
    email = Email.of(store, Settings())
    ahead = (datetime.now(UTC) + timedelta(hours=2) - DAY0) / timedelta(days=1)
    await tell(store, [fact(1, "bounced", ahead, bounce="hard"), fact(2, "complained", ahead + 0.01)])
    assert (await email.allow("jane@example.com", actor="ops"))["since"] is None
    assert await email.can_send("jane@example.com")
    await tell(store, [fact(3, "bounced", ahead + 1, bounce="hard")])
    assert not await email.can_send("jane@example.com")


async def test_of_an_address_that_is_imported_twice_the_earliest_counts(store: Store) -> None:
    email = Email.of(store, Settings())
    times = [f"20{year}-01-01T00:00:00.000000Z" for year in (24, 20, 99)]
    await email.change([SuppressionChange("jane@example.com", since=time) for time in times], actor="ops")
    found = await email.suppression("jane@example.com")
    assert found is not None and found["since"] == times[1]
    await email.change([SuppressionChange("joe@example.com", since=times[2])], actor="ops")
    blocked = await email.can_send("joe@example.com")
    assert isinstance(blocked, Blocked) and blocked.since is not None and blocked.since <= datetime.now(UTC)


async def test_a_note_may_be_any_text(store: Store, rows: Rows) -> None:
    await Email.of(store, Settings()).suppress("jane@example.com", actor="ops", note="a\x00b\ud800")
    assert rows("SELECT note FROM webhook_suppressions") == [("a\ufffdb?",)]


async def test_what_is_no_address_may_not_be_sent_to(store: Store) -> None:
    email = Email.of(store, Settings())
    assert (await email.can_send("nobody")).reason == "not an address"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="'nobody' is not an email address"):
        await email.suppress("nobody", actor="ops")


# -- rebuilding -----------------------------------------------------------------------------------------------------


async def test_a_rebuild_mends_what_was_broken_and_says_what(store: Store, database: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("oncehook.email.PAGE", 7)
    email = Email.of(store, Settings(email_soft_bounces=3))
    facts = history(200)
    await tell(store, facts)
    before = tables(database)
    assert (await email.verify()).as_json()["differences"] == 0
    back = " RETURNING 1" if database.startswith("p") else ""
    broken = "UPDATE webhook_email_status SET status = 'delivered', bounce = NULL WHERE status = 'bounced'"
    count = len(ask(database, "SELECT 1 FROM webhook_email_status WHERE status = 'bounced'"))
    ask(database, broken + back)
    ask(database, "DELETE FROM webhook_email_status WHERE status = 'opened' OR message_id LIKE 'm1%'" + back)
    ask(database, "DELETE FROM webhook_suppressions WHERE address LIKE 'r1%'" + back)
    assert count and len((await email.verify()).differences) > 10
    seen: list[int] = []
    done = await email.rebuild(lambda so_far: seen.append(so_far.messages))
    assert done.messages == len(before["status"]) and len(seen) > 10
    assert tables(database) == before
    assert (await email.verify()).differences == []


async def test_a_rebuild_while_facts_arrive_loses_none(store: Store, database: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("oncehook.email.PAGE", 10)
    email = Email.of(store, Settings(email_soft_bounces=3))
    facts = history(600)

    async def arrive() -> None:
        for start in range(0, len(facts), 20):
            await tell(store, facts[start : start + 20])

    arriving = asyncio.create_task(arrive())
    while not arriving.done():
        await email.rebuild()
    await arriving
    assert (await email.verify()).differences == []


@pytest.mark.parametrize("mend", [False, True])
async def test_a_fold_between_two_looks_is_no_difference(store: Store, monkeypatch: Any, mend: bool) -> None:
    """An address without a row cannot be held: its first suppression, and a lift, may come while it is looked at."""
    email = Email.of(store, Settings())
    await tell(store, [fact(1, "bounced", 0, bounce="soft")])
    read, came = suppressions._facts, []

    async def late(transaction: Any, addresses: Any) -> Any:
        if not came and not store.dialect.single_writer:  # on SQLite nobody writes meanwhile
            came.append(addresses)
            await tell(store, [fact(2, "bounced", 1, bounce="hard")])
            await email.allow("jane@example.com", actor="ops")
            await tell(store, [fact(3, "bounced", 9999, bounce="hard")])
        return await read(transaction, addresses)

    monkeypatch.setattr(suppressions, "_facts", late)
    assert (await (email.rebuild() if mend else email.verify())).differences == []
    if came:
        found = await email.suppression("jane@example.com")
        assert found is not None and found["event"] == "k3" and found["removed_at"] is not None


async def test_pruned_facts_take_their_message_along_and_unsuppress_nobody(store: Store, rows: Rows) -> None:
    now = (datetime.now(UTC) - DAY0).days
    email = Email.of(store, Settings(email_retention=(now - 5) * 86400.0))
    old = [
        fact(1, "delivered", 0),
        fact(1, "bounced", 1, bounce="hard", key="b"),
        fact(9, "complained", 0, "joe@example.com", message_id=""),
    ]
    new = [fact(2, "delivered", 0), fact(2, "opened", now - 1, key="o")]
    await tell(store, old + new)
    assert await email.prunable() == 3
    gone, is_more = await email.prune()
    assert (gone, is_more) == (3, False) and await email.prunable() == 0
    assert rows("SELECT message_id FROM webhook_email_status") == [("m2",)]
    assert sorted(rows("SELECT key FROM webhook_email_events")) == [("k2",), ("o",)]
    for _ in range(2):
        assert not await email.can_send("jane@example.com")
        assert not await email.can_send("joe@example.com")
        assert (await email.rebuild()).differences == []


async def test_forgetting_erases_the_facts_and_keeps_the_suppression_by_a_hash(
    store: Store, database: str, rows: Rows
) -> None:
    email = Email.of(store, Settings())
    mention = fact(
        5,
        "bounced",
        0,
        "joe@example.com",
        bounce="soft",
        reason="550 <Jane@example.com> moved",
        metadata='{"cc":"jane@example.com"}',
    )
    await tell(
        store, [fact(1, "bounced", bounce="hard", key="m1|Bounce|jane@example.com"), fact(1, "opened", 1), mention]
    )
    assert await email.forget("JANE@Example.com", actor="ops") > 0
    dump = str(
        [
            ask(database, f"SELECT * FROM {table}")
            for table in ("webhook_email_events", "webhook_email_status", "webhook_suppressions", "webhook_audit")
        ]
    )
    assert "jane" not in dump.lower()
    assert not await email.can_send("jane@example.com")
    assert (await email.rebuild()).differences == []
    assert not await email.can_send("jane@EXAMPLE.com")
    assert rows("SELECT key FROM webhook_email_events") == [("k5",)]
    assert await email.forget("jane@example.com", actor="ops") == 0


async def test_what_is_kept_of_a_mention_still_follows_from_the_facts(store: Store, rows: Rows) -> None:
    email = Email.of(store, Settings())
    mention = fact(
        5, "bounced", 0, "joe@example.com", bounce="soft", reason="550 no", metadata='{"cc":"jane@example.com"}'
    )
    await tell(store, [mention])
    await email.suppress("ann@example.com", actor="ops", note="said jane@example.com")
    assert await email.knows("jane@example.com")
    assert await email.forget("jane@example.com", actor="ops") == 2
    assert not await email.knows("jane@example.com")
    assert rows("SELECT reason, metadata FROM webhook_email_events") == [("550 no", "{}")]
    assert rows("SELECT address, note FROM webhook_suppressions") == [("ann@example.com", None)]
    assert (await email.verify()).differences == []


@pytest.mark.parametrize("to", ["jane@example.com", "zoe@example.com"])  # before and after a hash in the alphabet
async def test_an_address_that_was_forgotten_is_lifted_by_its_name(store: Store, rows: Rows, to: str) -> None:
    email = Email.of(store, Settings())
    await tell(store, [fact(1, "bounced", 0, to, bounce="hard")])
    await email.forget(to, actor="ops")
    assert not await email.can_send(to)
    lifted = await email.allow(to, actor="ops", note=f"{to} asked")
    assert (lifted["address"], lifted["since"]) == (to, None)
    assert await email.can_send(to)
    assert rows("SELECT note FROM webhook_suppressions WHERE address LIKE 'sha256:%'") == [(None,)]
    assert (await email.rebuild()).differences == [] and await email.can_send(to)


# -- counters -------------------------------------------------------------------------------------------------------


async def test_counts_are_of_the_facts_by_any_of_their_sides(store: Store) -> None:
    email = Email.of(store, Settings())
    tagged = {"tags": json.dumps(["receipt", "shop"])}
    facts = [
        fact(1, "delivered", 0, **tagged), fact(2, "delivered", 0.5, "joe@example.net"), fact(3, "opened", 1, **tagged),
        fact(4, "bounced", 1, bounce="hard"),
    ]  # fmt: skip
    for _ in range(3):
        await tell(store, facts)
    assert await email.counts() == [
        {"day": "2025-11-01", "type": "delivered", "bounce": None, "events": 2},
        {"day": "2025-11-02", "type": "bounced", "bounce": "hard", "events": 1},
        {"day": "2025-11-02", "type": "opened", "bounce": None, "events": 1},
    ]
    assert await email.counts(["tag"]) == [
        {"tag": "receipt", "events": 2}, {"tag": "shop", "events": 2}, {"tag": None, "events": 2}
    ]  # fmt: skip
    assert await email.counts(["domain"]) == [{"domain": "example.com", "events": 4}]
    assert await email.counts(["source"], since=DAY0 + timedelta(days=1)) == [{"source": "ses", "events": 2}]
    assert await email.counts([], until=DAY0 + timedelta(days=1), source="ses") == [{"events": 2}]
    assert await email.counts([], source="other") == []


# -- many -----------------------------------------------------------------------------------------------------------


async def replay_twice(store: Store, database: str, count: int) -> None:
    facts = history(count)
    for start in range(0, len(facts), 500):
        await tell(store, facts[start : start + 500])
    before, rows = tables(database), versions(database)
    chance = random.Random(3)
    for _ in range(2):
        told = chance.sample(facts, len(facts))
        for start in range(0, len(told), 500):
            await tell(store, told[start : start + 500])
    assert tables(database) == before
    assert versions(database) == rows


async def test_events_replayed_twice_give_zero_changed_rows(store: Store, database: str) -> None:
    await replay_twice(store, database, 5_000)


@pytest.mark.torture
async def test_a_hundred_thousand_events_replayed_twice_give_zero_changed_rows(store: Store, database: str) -> None:
    await replay_twice(store, database, 100_000)
    assert (await Email.of(store, Settings(email_soft_bounces=3)).verify()).differences == []


async def test_old_facts_go_by_themselves_in_steps(store: Store, rows: Rows, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr("oncehook.email.PAGE", 3)
    caplog.set_level("INFO", "oncehook")
    await tell(store, [fact(n, "delivered", 0) for n in range(10)])
    assert await prune_email(Email.of(store, Settings()).prune) == 0  # kept for ever unless somebody said otherwise
    email = Email.of(store, Settings(email_retention=86400.0))
    assert await email.prunable() == 10
    assert await prune_email(email.prune) == 10 and await email.prunable() == 0
    assert (
        rows("SELECT count(*) FROM webhook_email_events") == rows("SELECT count(*) FROM webhook_email_status") == [(0,)]
    )
    assert [vars(record)["event"] for record in caplog.records] == ["email_pruned"]


def test_a_reason_that_is_none_is_told_at_start() -> None:
    with pytest.raises(ConfigurationError, match=r"email_suppress.*'bounce' is not a known value"):
        Inbox("sqlite:///x.db", email_suppress=["bounce"])
