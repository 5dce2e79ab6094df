"""Suppressions: the earliest entry counts, in whatever order facts and changes of people arrive."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook import ConfigurationError, Inbox
from oncehook.config.settings import Settings
from oncehook.email import Blocked, Email, suppressions
from oncehook.email.suppressions import Policy, Suppression, SuppressionChange, derive_entry
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.email_facts import (
    DAY0,
    POLICY,
    clear_tables,
    examples,
    make_fact,
    record_facts,
    run_statement,
)
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


async def test_earliest_reason_by_the_providers_time_counts_in_any_order(store: Store) -> None:
    email = Email.of(store, Settings())
    await record_facts(store, [make_fact(2, "complained", 2)])
    await record_facts(store, [make_fact(3, "unsubscribed", 3)])
    await record_facts(store, [make_fact(1, "bounced", 1, bounce="hard")])
    found = await email.suppression("jane@example.com")
    assert found is not None
    assert (found["reason"], found["event"], found["since"][:10]) == ("hard_bounce", "k1", "2025-11-02")


@pytest.mark.parametrize(
    ("days", "is_blocked"),
    [([0, 1, 2], True), ([2, 0, 1], True), ([0, 1], False), ([0, 10, 31], False), ([0, 20, 40, 45], True)],
)
async def test_enough_soft_bounces_within_thirty_days_suppress(store: Store, days: list[int], is_blocked: bool) -> None:
    email = Email.of(store, Settings(email_soft_bounces=3))
    for number, day in enumerate(days):
        await record_facts(store, [make_fact(number, "bounced", day, bounce="soft")])
    assert bool(await email.can_send("jane@example.com")) is not is_blocked
    assert (await email.verify()).differences == []


async def test_soft_bounces_of_one_message_count_once(store: Store) -> None:
    email = Email.of(store, Settings())
    for number in range(9):
        await record_facts(store, [make_fact(number, "bounced", number, bounce="soft", message_id="m")])
    assert await email.can_send("jane@example.com")


async def test_soft_bounces_without_a_message_id_all_count(store: Store) -> None:
    email = Email.of(store, Settings(email_soft_bounces=3))
    for number in range(3):
        assert await email.can_send("jane@example.com"), f"{number} soft bounces are fewer than three"
        await record_facts(store, [make_fact(number, "bounced", number, bounce="soft", message_id="")])
    assert not await email.can_send("jane@example.com")


async def test_soft_bounces_before_a_person_allowed_the_address_no_longer_count(store: Store) -> None:
    email = Email.of(store, Settings(email_soft_bounces=3))
    today = (datetime.now(UTC) - DAY0).days
    await record_facts(store, [make_fact(number, "bounced", today - number, bounce="soft") for number in (1, 2, 3)])
    assert not await email.can_send("jane@example.com")
    await email.allow("jane@example.com", actor="ops")
    for number in (4, 5, 6):
        assert await email.can_send("jane@example.com"), f"{number - 4} soft bounces since then are fewer than three"
        await record_facts(store, [make_fact(number, "bounced", today + 2, bounce="soft")])
    assert not await email.can_send("jane@example.com")
    assert (await email.verify()).differences == []


async def test_concurrent_soft_bounces_are_all_counted(store: Store) -> None:
    email = Email.of(store, Settings())
    for round_ in range(20):
        to = f"r{round_}@example.com"
        await asyncio.gather(
            *(
                record_facts(store, [make_fact(n, "bounced", n, to, bounce="soft", key=f"{round_} {n}")])
                for n in range(3)
            )
        )
        assert not await email.can_send(to)


async def test_lifted_suppression_ignores_earlier_events_and_not_later_ones(store: Store, rows: Rows) -> None:
    email = Email.of(store, Settings())
    assert (await email.suppress("Jane@EXAMPLE.com", actor="ops", note="asked by phone"))["reason"] == "manual"
    found = await email.suppression("Jane@example.com")
    assert found is not None and (found["note"], found["actor"], found["event"]) == ("asked by phone", "ops", None)
    await record_facts(store, [make_fact(1, "bounced", 1, "jane@example.com", bounce="hard")])
    found = await email.suppression("Jane@example.com")
    assert found is not None and found["reason"] == "hard_bounce"  # the earlier of the two
    await email.allow("Jane@example.com", actor="ops", note="fixed")
    assert await email.can_send("Jane@example.com")
    await record_facts(
        store, [make_fact(2, "bounced", 2, "jane@example.com", bounce="hard")]
    )  # an earlier event that arrives late
    assert await email.can_send("Jane@example.com")
    future = (datetime.now(UTC) - DAY0).days + 2
    await record_facts(store, [make_fact(3, "complained", future, "jane@example.com")])
    assert not await email.can_send("Jane@example.com")
    assert (await email.verify()).differences == []
    audit = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert audit == [("ops", "suppress"), ("ops", "allow")]
    assert "jane" not in str(rows("SELECT detail FROM webhook_audit")).lower()


async def test_last_change_of_a_person_counts_within_a_millisecond_and_after_a_clock_change(
    store: Store, database: str
) -> None:
    email, jane = Email.of(store, Settings()), "jane@example.com"
    for _ in range(5):  # on SQLite many of these have the same millisecond
        await email.suppress(jane, actor="ops")
        await email.allow(jane, actor="ops")
        assert await email.can_send(jane)
        assert (await email.suppress(jane, actor="ops"))["reason"] == "manual"
        assert not await email.can_send(jane)
    await email.allow(jane, actor="ops")
    ahead = "2099-01-01T00:00:00.000000Z"
    run_statement(database, f"UPDATE webhook_suppressions SET removed_at = '{ahead}'")
    await email.suppress(jane, actor="ops")
    assert not await email.can_send(jane)
    await email.change([SuppressionChange("joe@example.com", since=ahead)], actor="ops")
    await email.allow("joe@example.com", actor="ops")
    assert await email.can_send("joe@example.com")
    assert (await email.verify()).differences == []


async def test_suppression_ignores_case_unless_configured_otherwise(store: Store) -> None:
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


async def test_rejection_suppresses_only_if_the_address_is_the_reason(store: Store) -> None:
    email = Email.of(store, Settings())
    await record_facts(
        store, [make_fact(1, "rejected", 1, bounce="hard"), make_fact(2, "rejected", 1, "joe@example.com")]
    )
    blocked = await email.can_send("jane@example.com")
    assert isinstance(blocked, Blocked) and (blocked.reason, blocked.event) == ("rejected", "k1")
    assert await email.can_send("joe@example.com")
    assert (await email.verify()).differences == []
    await email.allow("jane@example.com", actor="ops")
    assert await email.can_send("jane@example.com")


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
async def test_smaller_key_counts_for_facts_of_the_same_time_in_either_order(
    store: Store, order: tuple[int, int]
) -> None:
    for number in order:  # one transaction each, so that the database compares
        await record_facts(store, [make_fact(number, "bounced", 1, bounce="hard")])
    blocked = await Email.of(store, Settings()).can_send("jane@example.com")
    assert isinstance(blocked, Blocked) and blocked.event == "k1"
    assert (await Email.of(store, Settings()).verify()).differences == []


async def test_suppression_stays_when_the_first_of_its_soft_bounces_is_pruned(store: Store, database: str) -> None:
    email = Email.of(store, Settings(email_soft_bounces=3))
    await record_facts(store, [make_fact(number, "bounced", number, bounce="soft") for number in (1, 2, 3)])
    assert not await email.can_send("jane@example.com")
    run_statement(database, "DELETE FROM webhook_email_events WHERE key = 'k1'")
    await email.rebuild()
    blocked = await email.can_send("jane@example.com")
    assert isinstance(blocked, Blocked) and blocked.reason == "soft_bounces"


async def test_rejection_does_not_suppress_if_the_policy_excludes_it(store: Store) -> None:
    await record_facts(store, [make_fact(1, "rejected", 1, bounce="hard")], Policy.of(["hard_bounce"], 3))
    assert await Email.of(store, Settings()).can_send("jane@example.com")


ENTRIES = st.lists(st.sampled_from(["bounce", "late bounce", "add", "remove"]), min_size=1, max_size=8)


@given(entries=ENTRIES, seed=st.integers(0, 2**32))
@examples(5)
def test_changes_of_people_and_facts_give_the_same_row_in_any_order(
    database: str, entries: list[str], seed: int
) -> None:
    asyncio.run(assert_changes_commute(database, entries, random.Random(seed)))


@pytest.mark.torture
@given(entries=ENTRIES, seed=st.integers(0, 2**32))
@examples(15)
def test_changes_of_people_and_facts_give_the_same_row_in_any_order_at_length(
    database: str, entries: list[str], seed: int
) -> None:
    asyncio.run(assert_changes_commute(database, entries, random.Random(seed)))


async def assert_changes_commute(database: str, entries: list[str], chance: random.Random) -> None:
    """Record facts before or after the changes of a person: the row must be the same."""
    store = make_store(Settings(database=database))
    await store.open()
    email = Email.of(store, Settings())
    days = (datetime.now(UTC) - DAY0).days
    facts = [
        make_fact(n, "bounced", n if entry == "bounce" else days + 10 + n, bounce="hard", key=f"{seed_key(chance)} {n}")
        for n, entry in enumerate(entries) if "bounce" in entry
    ]  # fmt: skip
    try:
        outcomes = []
        for early in (True, False):
            clear_tables(database)
            if early:
                await record_facts(store, chance.sample(facts, len(facts)))
            for entry in entries:
                if entry in ("add", "remove"):
                    await email.change([SuppressionChange("jane@example.com", remove=entry == "remove")], actor="ops")
            if not early:
                for late_fact in chance.sample(facts, len(facts)):
                    await record_facts(store, [late_fact])
            found = await email.suppression("jane@example.com")
            outcomes.append(found and (found["reason"], found["event"]))
            assert (await email.verify()).differences == []
        assert outcomes[0] == outcomes[1]
    finally:
        await store.close()


def seed_key(chance: random.Random) -> str:
    return f"{chance.getrandbits(32):08x}"


async def test_reason_that_the_policy_excludes_does_not_suppress(store: Store) -> None:
    policy = Policy.of(["hard_bounce"], 5)
    await record_facts(
        store, [make_fact(1, "unsubscribed"), make_fact(2, "bounced", 1, "joe@example.com", bounce="hard")], policy
    )
    email = Email.of(store, Settings(email_suppress=("hard_bounce",)))
    assert await email.can_send("jane@example.com")
    assert not await email.can_send("joe@example.com")


async def test_lift_overrides_facts_of_a_provider_clock_that_is_ahead(store: Store) -> None:
    email = Email.of(store, Settings())
    ahead = (datetime.now(UTC) + timedelta(hours=2) - DAY0) / timedelta(days=1)
    await record_facts(store, [make_fact(1, "bounced", ahead, bounce="hard"), make_fact(2, "complained", ahead + 0.01)])
    assert (await email.allow("jane@example.com", actor="ops"))["since"] is None
    assert await email.can_send("jane@example.com")
    await record_facts(store, [make_fact(3, "bounced", ahead + 1, bounce="hard")])
    assert not await email.can_send("jane@example.com")


async def test_earliest_addition_counts_for_an_address_imported_twice(store: Store) -> None:
    email = Email.of(store, Settings())
    times = [f"20{year}-01-01T00:00:00.000000Z" for year in (24, 20, 99)]
    await email.change([SuppressionChange("jane@example.com", since=time) for time in times], actor="ops")
    found = await email.suppression("jane@example.com")
    assert found is not None and found["since"] == times[1]
    await email.change([SuppressionChange("joe@example.com", since=times[2])], actor="ops")
    blocked = await email.can_send("joe@example.com")
    assert isinstance(blocked, Blocked) and blocked.since is not None and blocked.since <= datetime.now(UTC)


async def test_note_with_invalid_characters_is_stored_cleaned(store: Store, rows: Rows) -> None:
    await Email.of(store, Settings()).suppress("jane@example.com", actor="ops", note="a\x00b\ud800")
    assert rows("SELECT note FROM webhook_suppressions") == [("a\ufffdb?",)]


async def test_text_that_is_not_an_address_is_blocked_and_cannot_be_suppressed(store: Store) -> None:
    email = Email.of(store, Settings())
    assert (await email.can_send("no address")).reason == "not an address"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="'no address' is not an email address"):
        await email.suppress("no address", actor="ops")


def test_unknown_suppression_reason_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"email_suppress.*'bounce' is not a known value"):
        Inbox("sqlite:///x.db", email_suppress=["bounce"])


# -- deriving entries, without a database ---------------------------------------------------------------------------


def test_policy_names_the_reason_of_a_single_fact() -> None:
    policy = Policy.of(["hard_bounce", "complaint"], 3)
    assert policy.reason(make_fact(1, "bounced", bounce="hard")) == "hard_bounce"
    assert policy.reason(make_fact(1, "complained")) == "complaint"
    assert policy.reason(make_fact(1, "bounced", bounce="soft")) is None
    assert policy.reason(make_fact(1, "unsubscribed")) is None, "the policy excludes unsubscribes"
    assert policy.reason(make_fact(1, "complained", to="")) is None, "there is no recipient to suppress"


def test_entry_of_pruned_facts_stays_until_it_is_lifted() -> None:
    stored = Suppression(
        "jane@example.com", since="2025-11-02T00:00:00.000000Z", reason="hard_bounce", event_key="gone"
    )
    assert derive_entry(stored, [], POLICY) == stored.entry
    stored.removed_at = "2025-11-03T00:00:00.000000Z"
    assert derive_entry(stored, [], POLICY) is None


def test_addition_by_a_person_counts_unless_a_fact_is_earlier() -> None:
    row = Suppression("jane@example.com", added_at="2025-11-05T00:00:00.000000Z")
    entry = derive_entry(row, [], POLICY)
    assert entry is not None and entry.reason == "manual"
    earlier = derive_entry(row, [make_fact(1, "complained", 1)], POLICY)
    assert earlier is not None and (earlier.reason, earlier.event_key) == ("complaint", "k1")


def test_json_of_a_suppression_names_its_event() -> None:
    row = suppressions.as_json(Suppression("jane@example.com", since="t", reason="manual", actor="ops"))
    assert (row["address"], row["reason"], row["event"], row["source"]) == ("jane@example.com", "manual", None, None)
    assert set(row) == {
        "address", "reason", "since", "source", "event", "message_id", "added_at", "removed_at", "note", "actor"
    }  # fmt: skip
