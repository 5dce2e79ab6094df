"""The state guard: whatever the order of arrival, the newest that was told of an entity counts."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry, RetryLater
from oncehook.handlers.order import InvalidOrder, advance_of
from oncehook.model.effect import NoopCount
from oncehook.model.lease import Leased
from oncehook.store.postgres.handler import PostgresTransaction
from oncehook.store.queries import load, number_parameters
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio

START = datetime(2026, 11, 15, tzinfo=UTC)
ENTITIES = "SELECT kind, id, state, event_id FROM webhook_entities ORDER BY id"


def leased(**changes: Any) -> Leased:
    facts: dict[str, Any] = {
        "receipt": 1,
        "lease": 1,
        "attempt": 1,
        "source": "stripe",
        "provider": "stripe",
        "event_id": "evt_1",
        "type": "customer.subscription.updated",
        "object_id": "sub_1",
        "occurred_at": START,
        "received_at": START,
        "delivery_id": None,
        "correlation_id": None,
        "replays": 0,
        "body": b"{}",
        "headers": "{}",
    }
    return Leased(**facts | changes)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE subscriptions (id TEXT PRIMARY KEY, status TEXT)")
        yield inbox


@pytest.fixture
def store(inbox: Inbox) -> Store:
    return inbox._runtime.store


async def advance(transaction: Any, said: Any) -> bool:
    return bool(await transaction.run_query(lambda sql: sql["advance"], json.dumps(said.as_json())))


async def advance_all(transaction: Any, said: list[Any]) -> None:
    """The same statement for each in turn, in one message: many thousand would take long to go to and fro."""
    given = [json.dumps(one.as_json()) for one in said]
    connection = await transaction.connection()
    if isinstance(transaction, PostgresTransaction):
        statement, _ = number_parameters(load("postgres")["advance"])
        await connection.executemany(statement, [(one,) for one in given])
    else:
        statement = load("sqlite")["advance"]
        await transaction.run(lambda one: [one.execute(statement, {"input": each}).fetchall() for each in given])


async def end(transaction: Any) -> None:
    """COMMIT without a receipt: only what is written is of interest here."""
    assert await transaction.settle([])


HISTORY: list[dict[str, Any]] = [
    {"event_id": "evt_a", "state": "trialing", "at": START},
    {"event_id": "evt_b", "state": "active", "at": START + timedelta(seconds=10), "version": 1},
    {"event_id": "evt_c", "state": "past_due", "at": START + timedelta(seconds=10), "version": 2},  # the same second
    {
        "event_id": "evt_e",
        "state": "unpaid",
        "at": START + timedelta(seconds=10),
        "version": 2,
    },  # a tie, but for its id
    {"event_id": "evt_d", "state": "active", "at": START + timedelta(seconds=20)},
    {"event_id": "evt_f", "state": "deleted", "at": START + timedelta(seconds=15), "terminal": True},
    {"event_id": "evt_g", "state": "updated", "at": START + timedelta(seconds=99)},  # late, after the end
]


async def test_every_order_of_a_history_of_seven_events_ends_in_the_same_state(store: Store, rows: Rows) -> None:
    said = [(fact.pop("event_id"), fact) for fact in map(dict, HISTORY)]
    transaction = store.transaction()
    orders = list(itertools.permutations(said))
    assert len(orders) == 5040
    for number, order in enumerate(orders):
        entity = "subscription", f"sub_{number}"
        await advance_all(transaction, [advance_of(leased(event_id=id), *entity, **facts) for id, facts in order])
        if number % 50 == 49:  # a handler's transaction has a limit
            await end(transaction)
            transaction = store.transaction()
    await end(transaction)
    assert rows("SELECT state, event_id, count(*) FROM webhook_entities GROUP BY state, event_id") == [
        ("deleted", "evt_f", 5040)
    ]


async def test_the_database_and_the_look_agree_on_what_is_newer(store: Store) -> None:
    chance = random.Random(7)
    times = [None, START, START + timedelta(microseconds=1), START + timedelta(days=1)]
    transaction = store.transaction()
    for number in range(300):
        both = []
        for _ in range(2):
            at, version = chance.choice(times), chance.choice([None, -(2**63), 0, 1, 2**63 - 1])
            facts = {"at": at, "version": version if at is not None or version is not None else 1}
            event_id = chance.choice(["evt_1", "evt_2", "evt_Z", "évt", "evt_\U0001f600", "evt_\uffff"])
            said = advance_of(leased(event_id=event_id), "k", f"{number}", terminal=chance.random() < 0.3, **facts)
            both.append(said)
        first, second = both
        assert await advance(transaction, first) is True
        assert await advance(transaction, second) is (second.order_key >= first.order_key), (first, second)
        if number % 50 == 49:
            await end(transaction)
            transaction = store.transaction()


async def test_a_late_update_after_the_end_changes_nothing(inbox: Inbox, rows: Rows) -> None:
    answers: dict[str, Any] = {}

    async def told(event: Event, tx: Any) -> None:
        deleted = event.type.endswith("deleted")
        stale = await event.is_stale("subscription", event.object_id, terminal=deleted)
        moved = await event.advance("subscription", event.object_id, state=event.type, terminal=deleted)
        answers[event.id] = stale, moved

    inbox.on("stripe", "customer.subscription.*")(told)
    inbox._runtime.start_worker()
    done = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"
    told_in_order = ("evt_2", "deleted", 10), ("evt_1", "updated", 5), ("evt_3", "updated", 99)
    for number, (event_id, what, seconds) in enumerate(told_in_order, 1):
        occurred = START + timedelta(seconds=seconds)
        type_ = f"customer.subscription.{what}"
        await claim(inbox, event_id, type=type_, object_id="sub_1", occurred_at=occurred)
        inbox._runtime.worker.wake()  # type: ignore[union-attr]
        await eventually(lambda number=number: rows(done) == [(number,)])  # type: ignore[misc]
    assert answers == {"evt_2": (False, True), "evt_1": (True, False), "evt_3": (True, False)}
    assert rows(ENTITIES) == [("subscription", "sub_1", "customer.subscription.deleted", "evt_2")]
    assert rows("SELECT reason, key FROM webhook_noops") == [("stale", "subscription:sub_1")] * 2
    assert await inbox._runtime.store.effects.noop_counts() == [NoopCount("stripe", "stale", 2)]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handlers_writes_under_the_guard_follow_the_newest_however_many_run_at_once(
    inbox: Inbox, rows: Rows, database: str, kind: str
) -> None:
    upsert = (
        "INSERT INTO subscriptions (id, status) VALUES ({}) ON CONFLICT (id) DO UPDATE SET status = excluded.status"
    ).format("$1, $2" if database.startswith("postgresql") else "?, ?")

    async def asynchronous(event: Event, tx: Any) -> None:
        if await event.advance("subscription", event.object_id, state=event.id):
            await tx.execute(upsert, event.object_id, event.id)

    def plain(event: Event, tx: Any) -> None:
        if event.advance("subscription", event.object_id, state=event.id):
            tx.execute(upsert, event.object_id, event.id)

    inbox.on("stripe", "*", retry=Retry(attempts=20, first=0.01, most=0.05))(asynchronous if kind == "async" else plain)
    numbers = list(range(60))
    random.Random(3).shuffle(numbers)
    for number in numbers:
        await inbox._runtime.store.claims.insert(
            [
                make_claim(
                    f"evt_{number:02d}", object_id=f"sub_{number % 3}", occurred_at=START + timedelta(seconds=number)
                )
            ]
        )
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(60,)])
    newest = [("sub_0", "evt_57"), ("sub_1", "evt_58"), ("sub_2", "evt_59")]
    assert rows("SELECT id, status FROM subscriptions ORDER BY id") == newest
    assert rows("SELECT id, state FROM webhook_entities ORDER BY id") == newest


async def test_a_replay_of_the_newest_event_is_not_stale(store: Store) -> None:
    transaction = store.transaction()
    said = advance_of(leased(), "subscription", "sub_1")
    assert await advance(transaction, said) is True
    assert await advance(transaction, said) is True
    await transaction.rollback()


async def test_a_handler_that_fails_has_not_advanced_anything(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def told(event: Event) -> None:
        assert await event.advance("subscription", event.object_id, version=1)
        raise ConnectionError

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert rows(ENTITIES) == []


async def test_an_answer_that_decides_must_be_awaited(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def told(event: Event) -> None:
        event.advance("subscription", event.object_id, version=1)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "event.advance(…) was not awaited" in error


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"at": None}, "cannot be ordered"),
        ({"at": datetime(2026, 1, 1)}, "with a time zone"),
        ({"at": "2026-01-01"}, "with a time zone"),
        ({"version": 1.5}, "integer of at most 64 bits"),
        ({"version": 2**63}, "integer of at most 64 bits"),
        ({"version": True}, "integer of at most 64 bits"),
        ({"state": 7}, "state= must be a string"),
        ({"state": "paid\x00"}, "without NUL characters"),
        ({"state": "paid\ud800"}, "lone surrogates"),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, "out of range in UTC"),
    ],
)
def test_what_cannot_be_ordered_is_refused(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOrder, match=said):
        advance_of(leased(), "subscription", "sub_1", **facts)
    with pytest.raises(InvalidOrder, match="the entity's id is None"):
        advance_of(leased(), "subscription", None)


# -- the object as it is now ----------------------------------------------------------------------------------------


async def test_the_canonical_object_is_fetched_once_before_the_transaction(inbox: Inbox, rows: Rows) -> None:
    asked, found = [], []

    @inbox.canonical("stripe")
    async def fetch(event: Event) -> Any:
        asked.append(event.object_id)
        return {"id": event.object_id, "status": "active"}

    @inbox.on("stripe", "*")
    async def told(event: Event, tx: Any) -> None:
        found.append(await event.canonical())
        found.append(await event.canonical())
        assert await tx.fetchval("SELECT count(*) FROM subscriptions") == 0

    await claim(inbox, "evt_1", object_id="sub_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("processed",)])
    assert (asked, found) == (["sub_1"], [{"id": "sub_1", "status": "active"}] * 2)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_when_the_provider_is_down_the_event_is_tried_again(inbox: Inbox, rows: Rows, kind: str) -> None:
    failures = iter([ConnectionError("no route"), RetryLater("not yet", after="0.01s"), None])
    found: list[Any] = []

    def answer(event: Event) -> Any:
        failure = next(failures)
        if failure is not None:
            raise failure
        return {"id": event.object_id}

    async def asynchronous(event: Event) -> Any:
        return answer(event)

    inbox.canonical("stripe", asynchronous if kind == "async" else answer)

    async def handler(event: Event) -> None:
        found.append(await event.canonical())

    def plain_handler(event: Event) -> None:
        found.append(event.canonical())

    inbox.on("stripe", "*", retry=QUICK)(handler if kind == "async" else plain_handler)
    await claim(inbox, "evt_1", object_id="sub_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("processed",)])
    assert found == [{"id": "sub_1"}]
    errors = [row[0] for row in rows("SELECT error FROM webhook_attempts ORDER BY id")]
    assert errors[0] == "RetryLater: the canonical object could not be fetched: ConnectionError: no route"
    assert errors[1:] == ["RetryLater: not yet", None]


async def test_a_provider_that_hangs_is_not_waited_for(inbox: Inbox, rows: Rows) -> None:
    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    inbox.canonical("stripe", hang, timeout="0.05s")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def told(event: Event) -> None:
        await event.canonical()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert rows("SELECT last_error FROM webhook_receipts") == [
        ("RetryLater: the provider did not respond within 0.05 s",)
    ]


async def test_no_transaction_is_open_while_a_provider_is_asked(inbox: Inbox, rows: Rows) -> None:
    inbox.canonical("stripe", lambda event: {"id": 1})

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def told(event: Event, tx: Any) -> None:
        await tx.execute("DELETE FROM subscriptions")
        await event.canonical()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "before the first use of tx" in error


async def test_a_source_without_a_fetcher_says_so_and_a_fetcher_may_give_up(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*")
    async def told(event: Event) -> None:
        await event.canonical()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert "inbox.canonical('stripe', fetch)" in rows("SELECT last_error FROM webhook_receipts")[0][0]

    def gone(event: Event) -> None:
        raise Fail("the account is closed")

    inbox.canonical("stripe", gone)
    [(receipt,)] = rows("SELECT id FROM webhook_receipts")
    await inbox._runtime.store.operations.replay([receipt], "the test", {})
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(lambda: rows("SELECT last_error FROM webhook_receipts") == [("Fail: the account is closed",)])
