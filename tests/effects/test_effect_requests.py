"""Effects that handlers request: recorded with the handler's work or not at all, and once per key."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Effect, EffectRefused, Event, Inbox, Retry, SyncEvent
from oncehook.model.effect import NoopCount
from oncehook.store.transaction import TransactionClosed
from oncehook.testing import post
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim, effects_are, receipts_are

pytestmark = pytest.mark.anyio


EFFECTS = "SELECT key, status, attempts FROM webhook_effects WHERE kind <> 'once' ORDER BY id"


NOOPS = "SELECT reason, key FROM webhook_noops ORDER BY id"


STATES = "SELECT event_id, status FROM webhook_receipts ORDER BY id"


STEAL = "UPDATE webhook_receipts SET lease = lease + 1 RETURNING id"


def handlers_of_every_kind(insert_note: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    async def asynchronous(event: Event) -> None:
        assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    async def asynchronous_with_tx(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, event.id)
        assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def plain(event: SyncEvent) -> None:
        assert event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def plain_with_tx(event: SyncEvent, tx: Any) -> None:
        assert event.effect(f"mail:{event.id}", "send_mail", to="jane") is True
        tx.execute(insert_note, event.id)

    async def batch(events: list[Event]) -> None:
        for event in events:
            assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def plain_batch(events: list[SyncEvent], tx: Any) -> None:
        for event in events:
            assert event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

    def with_another_loop(event: Event) -> None:
        async def request() -> None:
            assert await event.effect(f"mail:{event.id}", "send_mail", to="jane") is True

        asyncio.run(request())

    async def not_awaited(event: Event) -> None:
        _ = event.effect(f"mail:{event.id}", "send_mail", to="jane")

    return {
        "async": (asynchronous, {}),
        "async with tx": (asynchronous_with_tx, {}),
        "plain": (plain, {}),
        "plain with tx": (plain_with_tx, {}),
        "batch": (batch, {"batch": 10}),
        "plain batch": (plain_batch, {"batch": 10}),
        "another event loop": (with_another_loop, {}),
        "not awaited": (not_awaited, {}),
    }


@pytest.mark.parametrize("kind", list(handlers_of_every_kind("")))
async def test_an_effect_is_recorded_with_the_processed_status_and_runs_once(
    inbox: Inbox, rows: Rows, insert_note: str, mails: list[Any], kind: str
) -> None:
    handler, options = handlers_of_every_kind(insert_note)[kind]
    register: Any = inbox.on
    register("stripe", "invoice.paid", **options)(handler)
    await claim(inbox, "evt_1", "evt_2", "evt_3")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "done", 3))
    assert sorted(mail[:2] for mail in mails) == [(f"mail:evt_{n}", "jane") for n in (1, 2, 3)]
    assert len({mail[2] for mail in mails}) == 3
    assert receipts_are(rows, "processed", 3)()
    assert rows("SELECT DISTINCT scope, target, source FROM webhook_effects") == [("stripe", "send_mail", "stripe")]


async def test_an_inline_handler_records_its_effects_before_the_ack(
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


async def test_a_failed_attempt_records_no_effect_and_the_next_attempt_records_it(
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


async def test_rolling_back_a_savepoint_removes_its_effect(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        try:
            async with tx.transaction():
                await event.effect("mail:in_1", "send_mail", to="undone")
                raise ValueError
        except ValueError:
            assert await event.effect("mail:in_1", "send_mail", to="committed") is True

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: len(mails) == 1)
    assert mails[0][1] == "committed"


async def test_no_effect_can_be_requested_after_the_handler_has_ended(
    inbox: Inbox, rows: Rows, mails: list[Any]
) -> None:
    events: list[Event] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        events.append(event)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    (event,) = events
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await event.effect("k", "send_mail", to="x")
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await event.advance("invoice", "in_1", version=1)
    assert rows(EFFECTS) == []


async def test_events_that_request_the_same_key_share_one_effect(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    answers: list[bool] = []

    @inbox.on("stripe", "invoice.*")
    async def paid(event: Event) -> None:
        answers.append(await event.effect("receipt-email:in_1", "send_mail", to=event.id))

    await claim(inbox, "evt_1", "evt_2", type="invoice.paid")
    await claim(inbox, "evt_3", type="invoice.payment_succeeded")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 3))
    await eventually(effects_are(rows, "done", 1))
    assert sorted(answers) == [False, False, True]
    assert len(mails) == 1 and len(rows(EFFECTS)) == 1
    assert rows(NOOPS) == [("effect", "receipt-email:in_1")] * 2
    assert await inbox._runtime.store.effects.noop_counts() == [NoopCount("stripe", "effect", 2)]


async def test_eight_workers_that_request_one_key_concurrently_record_one_effect(
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
        leased = [(await worker._runtime.store.leases.take(1, 30, "the test"))[0] for worker in workers]
        for worker in workers:
            worker._runtime.start_worker()
        await asyncio.gather(
            *(worker._runtime.start_processor().process(lease) for worker, lease in zip(workers, leased, strict=True))
        )
        await eventually(receipts_are(rows, "processed", 8))
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
    await eventually(receipts_are(rows, "processed", 1))
    assert await inbox._runtime.relay.drain() == []  # type: ignore[union-attr]
    assert len(mails) == 1


async def test_each_scope_has_separate_keys(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
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


async def test_a_key_may_have_any_length_and_content(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    answers: list[bool] = []
    keys = ["k" * 300, "k" * 301, "nul\x00", "lone\ud800", "läng" * 70]

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        answers.extend([await event.effect(key, "send_mail", to="jane") for key in keys + keys])

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: len(mails) == len(keys))
    assert answers == [True] * 5 + [False] * 5


async def test_a_request_that_cannot_run_is_rejected_in_the_handler(inbox: Inbox, rows: Rows, mails: list[Any]) -> None:
    messages: list[str] = []

    async def unregistered(effect: Effect) -> None: ...

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        for target, args in (
            (unregistered, {}),
            ("send_mail", {"whom": "jane"}),
            ("send_mail", {}),
        ):
            with pytest.raises(EffectRefused) as rejected:
                await event.effect("k", target, **args)
            messages.append(str(rejected.value))
        for target in ("", "a\x00b", "a\ud800b"):
            with pytest.raises(EffectRefused, match="pass a function with"):
                await event.effect("k", target)
            with pytest.raises(EffectRefused, match="the topic is"):
                await event.publish(target, {})
        for key in ("", None, 7):
            with pytest.raises(EffectRefused, match="pass a non-empty string"):
                await event.effect(key, "send_mail", to="jane")  # type: ignore[arg-type]

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows(STATES)[0][1] != "received" and rows(STATES)[0][1] != "processing")
    assert rows(STATES) == [("evt_1", "processed")]
    assert "decorate it with @inbox.effect" in messages[0]
    assert "cannot be called with these arguments" in messages[1] and "to" in messages[2]
    assert rows(EFFECTS) == []


async def test_two_different_effects_with_one_key_in_one_handler_call_are_rejected(
    inbox: Inbox, rows: Rows, mails: list[Any]
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event) -> None:
        _ = event.effect("mail:in_1", "send_mail", to="jane")
        _ = event.effect("mail:in_1", "send_mail", to="joe")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 1))
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "two different effects with the key 'mail:in_1'" in error
    assert rows(EFFECTS) == []


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
