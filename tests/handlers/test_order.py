"""Order: an entity has the state of its newest event, whatever the order in which events arrive."""

import itertools
import json
import random
from datetime import UTC, datetime, timedelta, timezone
from math import factorial
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry, SyncEvent
from oncehook.handlers.order import Advance, InvalidOrder, advance_of
from oncehook.model.effect import NoopCount
from oncehook.store.postgres.handler import PostgresTransaction
from oncehook.store.queries import load, number_parameters
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim, make_leased
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

START = datetime(2026, 11, 15, tzinfo=UTC)
ENTITIES = "SELECT kind, id, state, event_id FROM webhook_entities ORDER BY id"


@pytest.fixture
def store(inbox: Inbox) -> Store:
    return inbox._runtime.store


async def advance(transaction: Any, values: Advance) -> bool:
    return bool(await transaction.run_query(lambda sql: sql["advance"], json.dumps(values.as_json())))


async def advance_all(transaction: Any, values: list[Advance]) -> None:
    """Run the statement for each value, in one message: thousands of round trips would take too long."""
    parameters = [json.dumps(value.as_json()) for value in values]
    connection = await transaction.connection()
    if isinstance(transaction, PostgresTransaction):
        statement, _ = number_parameters(load("postgres")["advance"])
        await connection.executemany(statement, [(parameter,) for parameter in parameters])
    else:
        statement = load("sqlite")["advance"]
        await transaction.run(
            lambda raw: [raw.execute(statement, {"input": parameter}).fetchall() for parameter in parameters]
        )


async def commit(transaction: Any) -> None:
    """Commit without a receipt: these tests look only at the entities."""
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


@pytest.mark.parametrize("length", [6, pytest.param(7, marks=pytest.mark.torture)])
async def test_every_order_of_a_history_ends_in_the_same_state(store: Store, rows: Rows, length: int) -> None:
    history = [(fact.pop("event_id"), fact) for fact in map(dict, HISTORY[-length:])]
    transaction = store.transaction()
    orders = list(itertools.permutations(history))
    for number, order in enumerate(orders):
        entity = "subscription", f"sub_{number}"
        await advance_all(transaction, [advance_of(make_leased(event_id=id), *entity, **facts) for id, facts in order])
        if number % 50 == 49:  # a handler's transaction has a limit
            await commit(transaction)
            transaction = store.transaction()
    await commit(transaction)
    states = rows("SELECT state, event_id, count(*) FROM webhook_entities GROUP BY state, event_id")
    assert states == [("deleted", "evt_f", factorial(length))], "every order must end in the terminal state"


async def test_database_and_python_agree_which_event_is_newer(store: Store) -> None:
    chance = random.Random(7)
    times = [None, START, START + timedelta(microseconds=1), START + timedelta(days=1)]
    transaction = store.transaction()
    for number in range(300):
        both = []
        for _ in range(2):
            at, version = chance.choice(times), chance.choice([None, -(2**63), 0, 1, 2**63 - 1])
            facts: dict[str, Any] = {"at": at, "version": version if at is not None or version is not None else 1}
            event_id = chance.choice(["evt_1", "evt_2", "evt_Z", "évt", "evt_\U0001f600", "evt_\uffff"])
            values = advance_of(
                make_leased(event_id=event_id), "k", f"{number}", terminal=chance.random() < 0.3, **facts
            )
            both.append(values)
        first, second = both
        assert await advance(transaction, first) is True
        assert await advance(transaction, second) is (second.order_key >= first.order_key), (first, second)
        if number % 50 == 49:
            await commit(transaction)
            transaction = store.transaction()


async def test_update_that_arrives_after_a_terminal_state_is_stale(inbox: Inbox, rows: Rows) -> None:
    answers: dict[str, Any] = {}

    async def handle(event: Event, tx: Any) -> None:
        deleted = event.type.endswith("deleted")
        stale = await event.is_stale("subscription", event.object_id, terminal=deleted)
        moved = await event.advance("subscription", event.object_id, state=event.type, terminal=deleted)
        answers[event.id] = stale, moved

    inbox.on("stripe", "customer.subscription.*")(handle)
    inbox._runtime.start_worker()
    done = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"
    deliveries = ("evt_2", "deleted", 10), ("evt_1", "updated", 5), ("evt_3", "updated", 99)
    for number, (event_id, what, seconds) in enumerate(deliveries, 1):
        occurred = START + timedelta(seconds=seconds)
        type_ = f"customer.subscription.{what}"
        await claim(inbox, event_id, type=type_, object_id="sub_1", occurred_at=occurred)
        inbox._runtime.worker.wake()  # type: ignore[union-attr]
        await eventually(lambda number=number: rows(done) == [(number,)])  # type: ignore[misc]
    assert answers == {"evt_2": (False, True), "evt_1": (True, False), "evt_3": (True, False)}
    assert rows(ENTITIES) == [("subscription", "sub_1", "customer.subscription.deleted", "evt_2")]
    assert rows("SELECT reason, key FROM webhook_noops") == [("stale", "subscription:sub_1")] * 2
    assert await inbox._runtime.store.effects.noop_counts() == [NoopCount("stripe", "stale", 2)]


@pytest.mark.usefixtures("subscriptions")
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_concurrent_handlers_leave_the_state_of_the_newest_event(
    inbox: Inbox, rows: Rows, database: str, kind: str
) -> None:
    upsert = (
        "INSERT INTO subscriptions (id, status) VALUES ({}) ON CONFLICT (id) DO UPDATE SET status = excluded.status"
    ).format("$1, $2" if database.startswith("postgresql") else "?, ?")

    async def asynchronous(event: Event, tx: Any) -> None:
        if await event.advance("subscription", event.object_id, state=event.id):
            await tx.execute(upsert, event.object_id, event.id)

    def plain(event: SyncEvent, tx: Any) -> None:
        if event.advance("subscription", event.object_id, state=event.id):
            tx.execute(upsert, event.object_id, event.id)

    handler: Any = asynchronous if kind == "async" else plain
    inbox.on("stripe", "*", retry=Retry(attempts=20, first=0.01, most=0.05))(handler)
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


async def test_replay_of_the_newest_event_is_not_stale(store: Store) -> None:
    transaction = store.transaction()
    values = advance_of(make_leased(), "subscription", "sub_1")
    assert await advance(transaction, values) is True
    assert await advance(transaction, values) is True
    await transaction.rollback()


async def test_failed_handler_advances_no_entity(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        assert await event.advance("subscription", event.object_id, version=1)
        raise ConnectionError

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert rows(ENTITIES) == []


@pytest.mark.parametrize(
    ("facts", "message"),
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
def test_values_that_cannot_be_ordered_are_an_error(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOrder, match=message):
        advance_of(make_leased(), "subscription", "sub_1", **facts)
    with pytest.raises(InvalidOrder, match="the entity's id is None"):
        advance_of(make_leased(), "subscription", None)
