"""Effects: recorded with the handler's work or not at all, once per key, in every kind of handler."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import ConfigurationError, Effect, EffectRefused, Event, Inbox, Retry
from oncehook.effects.effect import MAX_ARGUMENT_BYTES, encode
from oncehook.model.effect import NoopCount
from oncehook.store.transaction import TransactionClosed
from oncehook.testing import post
from tests.support.events import Rows, make_claim, stripe_body, stripe_headers
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio

EFFECTS = "SELECT key, status, attempts FROM webhook_effects WHERE kind <> 'once' ORDER BY id"
NOOPS = "SELECT reason, key FROM webhook_noops ORDER BY id"
STATES = "SELECT event_id, status FROM webhook_receipts ORDER BY id"
STEAL = "UPDATE webhook_receipts SET lease = lease + 1 RETURNING id"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker yet, and a table that handlers write to."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        yield inbox


@pytest.fixture
def insert(database: str) -> str:
    return f"INSERT INTO ledger (note) VALUES ({'$1' if database.startswith('postgresql') else '?'})"


@pytest.fixture
def mails(inbox: Inbox) -> list[tuple[str, str, str]]:
    """What the effect `send_mail` was called with."""
    calls: list[tuple[str, str, str]] = []

    @inbox.effect
    async def send_mail(effect: Effect, to: str) -> None:
        calls.append((effect.key, to, effect.idempotency_key))

    return calls


def all_are(rows: Rows, status: str, count: int) -> Callable[[], bool]:
    asked = f"SELECT count(*) FROM webhook_receipts WHERE status = '{status}'"
    return lambda: rows(asked) == [(count,)]


def effects_are(rows: Rows, status: str, count: int) -> Callable[[], bool]:
    asked = f"SELECT count(*) FROM webhook_effects WHERE status = '{status}' AND kind <> 'once'"
    return lambda: rows(asked) == [(count,)]


# -- in every kind of handler ---------------------------------------------------------------------------------------


def handlers_of_every_kind(insert: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    async def asynchronous(event: Event) -> None:
        assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    async def asynchronous_with_tx(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id)
        assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def plain(event: Event) -> None:
        assert event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def plain_with_tx(event: Event, tx: Any) -> None:
        assert event.effect(f"mail:{event.id}", "send_mail", to="jane") is True
        tx.execute(insert, event.id)

    async def batch(events: list[Event]) -> None:
        for event in events:
            assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def plain_batch(events: list[Event], tx: Any) -> None:
        for event in events:
            assert event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def with_a_loop_of_its_own(event: Event) -> None:
        async def ask() -> None:
            assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

        asyncio.run(ask())

    async def not_awaited(event: Event) -> None:
        event.effect(f"mail:{event.id}", "send_mail", to="jane")

    return {
        "async": (asynchronous, {}),
        "async with tx": (asynchronous_with_tx, {}),
        "plain": (plain, {}),
        "plain with tx": (plain_with_tx, {}),
        "batch": (batch, {"batch": 10}),
        "plain batch": (plain_batch, {"batch": 10}),
        "a loop of its own": (with_a_loop_of_its_own, {}),
        "not awaited": (not_awaited, {}),
    }


@pytest.mark.parametrize("kind", list(handlers_of_every_kind("")))
async def test_an_effect_is_recorded_with_the_mark_and_performed_once(
    inbox: Inbox, rows: Rows, insert: str, mails: list[Any], kind: str
) -> None:
    handler, options = handlers_of_every_kind(insert)[kind]
    inbox.on("stripe", "invoice.paid", **options)(handler)
    await claim(inbox, "evt_1", "evt_2", "evt_3")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "done", 3))
    assert sorted(mail[:2] for mail in mails) == [(f"mail:evt_{n}", "jane") for n in (1, 2, 3)]
    assert len({mail[2] for mail in mails}) == 3
    assert all_are(rows, "processed", 3)()
    assert rows("SELECT DISTINCT scope, target, source FROM webhook_effects") == [("stripe", "send_mail", "stripe")]


async def test_inline_work_records_its_effects_before_the_ack(
    make_inbox: Callable[..., Inbox], rows: Rows, mails: list[Any]
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.effect(name="send_mail")(lambda effect, to: mails.append(to))

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "send_mail", to="jane")

    body = stripe_body("evt_1")
    async with inbox.lifespan():
        answer = await post(inbox, "stripe", body, stripe_headers(body))
        assert answer.outcome == (200, "processed")
        assert [row[0] for row in rows(EFFECTS)] == ["mail:in_1"]
        await eventually(lambda: mails == ["jane"])


# -- together or not at all -----------------------------------------------------------------------------------------


async def test_a_handler_that_fails_leaves_no_effect_and_its_next_attempt_has_one(
    inbox: Inbox, rows: Rows, mails: list[Any]
) -> None:
    seen: list[Any] = []

    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event) -> None:
        seen.append((await event.effect("mail:in_1", "send_mail", to=f"attempt {event.attempt}"), rows(EFFECTS)))
        if event.attempt == 1:
            raise ConnectionError("the bank is closed")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: len(mails) == 1)
    assert mails[0][1] == "attempt 2"
    assert seen == [(True, []), (True, [])]
    assert rows(NOOPS) == []


async def test_a_worker_that_lost_its_lease_records_no_effect(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    ended = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        rows(STEAL)
        await event.effect("mail:in_1", "send_mail", to="jane")
        ended.set()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await asyncio.wait_for(ended.wait(), 10)
    await inbox._runtime.worker.stop()  # type: ignore[union-attr]
    assert (rows(EFFECTS), rows(STATES), mails) == ([], [("evt_1", "processing")], [])


async def test_a_savepoint_that_is_undone_takes_its_effect_with_it(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        try:
            async with tx.transaction():
                await event.effect("mail:in_1", "send_mail", to="undone")
                raise ValueError
        except ValueError:
            assert await event.effect("mail:in_1", "send_mail", to="kept") is True

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: len(mails) == 1)
    assert mails[0][1] == "kept"


async def test_nothing_can_be_asked_for_after_the_handler_has_ended(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    events: list[Event] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        events.append(event)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "processed", 1))
    for ask in (lambda e: e.effect("k", "send_mail", to="x"), lambda e: e.advance("invoice", "in_1", version=1)):
        with pytest.raises(TransactionClosed, match="after its handler had ended"):
            ask(events[0])
    assert rows(EFFECTS) == []


# -- once per key ---------------------------------------------------------------------------------------------------


async def test_two_events_that_ask_for_one_key_have_one_effect_and_a_counted_conflict(
    inbox: Inbox, rows: Rows, mails: list[Any]
) -> None:
    answers: list[bool] = []

    @inbox.on("stripe", "invoice.*")
    async def paid(event: Event) -> None:
        answers.append(await event.effect("receipt-email:in_1", "send_mail", to=event.id))

    await claim(inbox, "evt_1", "evt_2", type="invoice.paid")
    await claim(inbox, "evt_3", type="invoice.payment_succeeded")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "processed", 3))
    await eventually(effects_are(rows, "done", 1))
    assert sorted(answers) == [False, False, True]
    assert len(mails) == 1 and len(rows(EFFECTS)) == 1
    assert rows(NOOPS) == [("effect", "receipt-email:in_1")] * 2
    assert await inbox._runtime.store.effects.noop_counts() == [NoopCount("stripe", "effect", 2)]


async def test_eight_workers_that_ask_for_one_key_at_once_record_it_once(
    make_inbox: Callable[..., Inbox], inbox: Inbox, rows: Rows, database: str
) -> None:
    together, calls, answers = asyncio.Barrier(8), [], []

    async def paid(event: Event) -> None:
        if event.attempt == 1:
            await together.wait()
        answers.append(await event.effect("mail:in_1", "send_mail", to=event.id))

    await claim(inbox, *(f"evt_{n}" for n in range(8)))
    workers = [make_inbox(worker=False, concurrency=1) for _ in range(8)]
    for worker in workers:
        worker.source("stripe", secrets=["whsec_test"])
        worker.on("stripe", "invoice.paid", retry=QUICK)(paid)
        worker.effect(name="send_mail")(lambda effect, to: calls.append(effect.idempotency_key))
        await worker.start()
    try:
        leased = [(await worker._runtime.store.leases.take(1, 30, "of the test"))[0] for worker in workers]
        for worker in workers:
            worker._runtime.start_worker()
        await asyncio.gather(
            *(worker._runtime.processor.process(one) for worker, one in zip(workers, leased, strict=True))
        )
        await eventually(all_are(rows, "processed", 8))
        await eventually(effects_are(rows, "done", 1))
    finally:
        for worker in workers:
            await worker.stop()
    assert (len(calls), len(rows(EFFECTS)), len(rows(NOOPS))) == (1, 1, 7)
    assert answers.count(True) == 1


async def test_a_replay_does_not_repeat_an_effect(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "send_mail", to="jane")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "done", 1))
    [(receipt,)] = rows("SELECT id FROM webhook_receipts")
    assert await inbox._runtime.store.operations.replay([receipt], "the test", {}) == [receipt]
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(lambda: rows("SELECT count(*) FROM webhook_noops") == [(1,)])
    await eventually(all_are(rows, "processed", 1))
    assert await inbox._runtime.relay.drain() == []  # type: ignore[union-attr]
    assert len(mails) == 1


async def test_a_scope_has_keys_of_its_own(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    answers: list[bool] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        answers.append(await event.effect("mail:in_1", "send_mail", to="jane"))
        answers.append(await event.effect("mail:in_1", "send_mail", to="jane", scope="shop"))
        answers.append(await event.effect("mail:in_1", "send_mail", to="jane", scope="shop"))

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: len(mails) == 2)
    assert answers == [True, True, False]
    assert mails[0][2] != mails[1][2]


async def test_a_key_of_any_length_and_content_is_a_key(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    answers: list[bool] = []
    keys = ["k" * 300, "k" * 301, "nul\x00", "lone\ud800", "läng" * 70]

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        answers.extend([await event.effect(key, "send_mail", to="jane") for key in keys + keys])

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: len(mails) == len(keys))
    assert answers == [True] * 5 + [False] * 5


# -- what cannot be recorded ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (datetime.datetime.now(), r"arguments\.at is a datetime"),
        ({"a": [1, {2}]}, r"arguments\.at\.a\[1\] is a set"),
        (float("nan"), "is nan"),
        ((1, 2), "is a tuple"),
        (b"bytes", "is a bytes"),
        ({1: 2}, "has a key of type int"),
        ("x" * MAX_ARGUMENT_BYTES, "the limit is"),
        ([10**5000], "cannot be written as JSON"),
    ],
)
def test_arguments_that_are_not_plain_data_are_refused(value: Any, said: str) -> None:
    with pytest.raises(EffectRefused, match=said):
        encode({"at": value})


def test_plain_data_comes_back_as_it_was() -> None:
    import json

    args = {"a": [1, 2.5, None, True, "x\x00\ud800é"], "b": {"c": 10**40, "d": -1}}
    assert json.loads(encode(args)) == args


async def test_what_cannot_be_performed_is_refused_at_the_call(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    said: list[str] = []

    async def stranger(effect: Effect) -> None: ...

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        for what, args in (
            (stranger, {}),
            ("send_mail", {"whom": "jane"}),
            ("send_mail", {}),
        ):
            with pytest.raises(EffectRefused) as refused:
                await event.effect("k", what, **args)
            said.append(str(refused.value))
        for what in ("", "a\x00b", "a\ud800b"):
            with pytest.raises(EffectRefused, match="pass a function with"):
                await event.effect("k", what)
            with pytest.raises(EffectRefused, match="the topic is"):
                await event.publish(what, {})
        for key in ("", None, 7):
            with pytest.raises(EffectRefused, match="pass a non-empty string"):
                await event.effect(key, "send_mail", to="jane")  # type: ignore[arg-type]

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows(STATES)[0][1] != "received" and rows(STATES)[0][1] != "processing")
    assert rows(STATES) == [("evt_1", "processed")]
    assert "decorate it with @inbox.effect" in said[0]
    assert "cannot be called with these arguments" in said[1] and "to" in said[2]
    assert rows(EFFECTS) == []


async def test_two_different_effects_of_one_key_in_one_call_are_refused(
    inbox: Inbox, rows: Rows, mails: list[Any]
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event) -> None:
        event.effect("mail:in_1", "send_mail", to="jane")
        event.effect("mail:in_1", "send_mail", to="joe")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "failed", 1))
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "two different effects with the key 'mail:in_1'" in error
    assert rows(EFFECTS) == []


def test_a_name_is_registered_once_and_a_function_takes_the_effect(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()

    @inbox.effect
    async def send(effect: Effect) -> None: ...

    with pytest.raises(ConfigurationError, match="two functions are registered"):
        inbox.effect(name="send")(lambda effect: None)
    with pytest.raises(ConfigurationError, match="must take the effect as its first argument"):
        inbox.effect(name="other")(lambda: None)


# -- messages -------------------------------------------------------------------------------------------------------


def test_a_subscriber_that_could_take_no_message_is_refused_where_it_is_written(
    make_inbox: Callable[..., Inbox],
) -> None:
    inbox = make_inbox()
    for wrong in (lambda payload: None, lambda effect, message: None, lambda effect, payload, more: None):
        with pytest.raises(ConfigurationError, match=r"def f\(effect, payload\)"):
            inbox.subscribe("invoices")(wrong)
    with pytest.raises(ConfigurationError, match="needs a topic"):
        inbox.subscribe(lambda effect, payload: None)  # type: ignore[arg-type]  # without the brackets
    inbox.subscribe("invoices")(lambda effect, payload, more=None: None)
    inbox.subscribe("others")(lambda *args, **named: None)


async def test_a_message_is_published_after_the_commit_once_per_key(inbox: Inbox, rows: Rows) -> None:
    messages: list[Any] = []

    @inbox.subscribe("invoices")
    def take(effect: Effect, payload: Any) -> None:
        messages.append((effect.key, payload))

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.publish("invoices", {"id": event.object_id})
        await event.publish("invoices", {"id": event.object_id, "total": 7}, key=f"total:{event.object_id}")

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "done", 3))
    assert sorted(messages, key=str) == [
        ("invoices:evt_1", {"id": "in_1"}),
        ("invoices:evt_2", {"id": "in_1"}),
        ("total:in_1", {"id": "in_1", "total": 7}),
    ]


# -- once per identity ----------------------------------------------------------------------------------------------


async def test_a_handler_that_is_once_per_object_handles_the_first_event_of_each(
    inbox: Inbox, rows: Rows, insert: str, mails: list[Any]
) -> None:
    @inbox.on("stripe", "invoice.*", once_per=("type", "object_id"))
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, f"{event.type} {event.object_id}")

    await claim(inbox, "evt_1", "evt_2", object_id="in_1")
    await claim(inbox, "evt_3", object_id="in_2")
    await claim(inbox, "evt_4", object_id="in_1", type="invoice.voided")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "processed", 4))
    assert sorted(rows("SELECT note FROM ledger")) == [
        ("invoice.paid in_1",),
        ("invoice.paid in_2",),
        ("invoice.voided in_1",),
    ]
    assert len(rows(NOOPS)) == 1


async def test_a_handler_that_is_once_per_object_runs_again_for_its_own_replay_alone(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    @inbox.on("stripe", "invoice.paid", once_per="object_id")
    def paid(event: Event, tx: Any) -> None:
        tx.execute(insert, event.id)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "processed", 1))
    await claim(inbox, "evt_2")
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(all_are(rows, "processed", 2))
    receipts = [row[0] for row in rows("SELECT id FROM webhook_receipts ORDER BY id")]
    await inbox._runtime.store.operations.replay(receipts, "the test", {})
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(all_are(rows, "processed", 2))
    assert rows("SELECT note FROM ledger") == [("evt_1",), ("evt_1",)]


async def test_of_events_of_one_identity_at_once_the_work_of_one_is_kept(
    inbox: Inbox, rows: Rows, insert: str, mails: list[Any]
) -> None:
    together = asyncio.Barrier(4)

    @inbox.on("stripe", "invoice.paid", once_per="object_id", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        if event.attempt == 1:
            await together.wait()
        await tx.execute(insert, event.id)
        await event.effect(f"mail:{event.id}", "send_mail", to="jane")

    await claim(inbox, *(f"evt_{n}" for n in range(4)))
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "processed", 4))
    assert len(rows("SELECT note FROM ledger")) == 1
    assert len(rows(EFFECTS)) == 1
    assert len(rows(NOOPS)) == 3


@pytest.mark.parametrize("swallows", [False, True])
async def test_whoever_loses_the_race_for_an_identity_is_processed_without_the_work(
    inbox: Inbox, rows: Rows, insert: str, swallows: bool
) -> None:
    """Both ask for the same key inside the handler, where the second waits for the first; there is one attempt."""
    together = asyncio.Barrier(2)
    inbox.effect(name="note")(lambda effect: None)

    @inbox.on("stripe", "invoice.paid", once_per="object_id", retry=Retry(attempts=1))
    async def paid(event: Event, tx: Any) -> None:
        await together.wait()
        try:
            await event.effect("note:in_1", "note")
            await tx.execute(insert, event.id)
        except Exception:
            if not swallows:
                raise

    await claim(inbox, "evt_1", "evt_2", object_id="in_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "processed", 2))
    assert len(rows("SELECT note FROM ledger")) == 1
    assert rows("SELECT count(*) FROM webhook_effects WHERE kind = 'function'") == [(1,)]
    (noop,) = rows("SELECT reason, key FROM webhook_noops")
    assert noop[0] == "effect" and noop[1].startswith("once:")


async def test_an_event_without_the_identity_is_a_dead_letter_with_a_sentence(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid", once_per="object_id")
    async def paid(event: Event) -> None: ...

    await inbox._runtime.store.claims.insert([make_claim("evt_1", object_id=None)])
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "failed", 1))
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "once_per='object_id', but the event has no such value" in error


@pytest.mark.parametrize("nothing", [5, "", (), ("object_id", 7)], ids=repr)
def test_once_per_names_texts(make_inbox: Callable[..., Inbox], nothing: Any) -> None:
    with pytest.raises(ConfigurationError, match="once_per"):
        make_inbox().on("stripe", "*", once_per=nothing)(lambda event: None)


def test_once_per_and_batch_exclude_each_other(make_inbox: Callable[..., Inbox]) -> None:
    with pytest.raises(ConfigurationError, match="once_per and batch"):
        make_inbox().on("stripe", "*", once_per="object_id", batch=10)(lambda events: None)
