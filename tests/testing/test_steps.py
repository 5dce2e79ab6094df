"""Running the work of an inbox step by step: `drain`, `perform`, `crash`, `replay` and `prune`."""

from collections.abc import Callable

import pytest

from oncehook import Effect, Event, Inbox, Retry, RetryLater, State
from oncehook.model.effect import EffectState
from oncehook.store.rows import EffectTarget
from oncehook.testing import (
    NotAtRest,
    Performed,
    advance,
    crash,
    deliver,
    drain,
    perform,
    prune,
    replay,
)
from tests.support.events import Rows
from tests.support.work import fail_first_attempts

pytestmark = pytest.mark.anyio


async def test_drain_leaves_a_later_retry_until_time_advances(inbox: Inbox) -> None:
    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if event.attempt == 1:
            raise RetryLater("not yet", after="2h")

    await deliver(inbox, "stripe")
    (first,) = await drain(inbox)
    assert (first.status, first.attempts) == (State.RETRYING, 1)
    await advance(inbox, "1h")
    assert await drain(inbox) == []
    await advance(inbox, "75m")
    (second,) = await drain(inbox)
    assert (second.status, second.attempts) == (State.PROCESSED, 2)


async def test_drain_never_runs_a_retry_by_chance(inbox: Inbox) -> None:
    """A random delay of at most five seconds would be over before the end of `drain` for one of these events."""
    attempts = fail_first_attempts(inbox, 99)
    for _ in range(300):
        await deliver(inbox, "stripe")
    assert {(receipt.status, receipt.attempts) for receipt in await drain(inbox)} == {(State.RETRYING, 1)}
    assert len(attempts) == 300


async def test_drain_with_later_runs_every_retry(inbox: Inbox) -> None:
    attempts = fail_first_attempts(inbox, 99, attempts=4, first=3600)
    await deliver(inbox, "stripe")
    (dead,) = await drain(inbox, later=True)
    assert (dead.status, dead.last_error, attempts) == (
        State.FAILED, "ConnectionError: the bank is closed", [1, 2, 3, 4]
    )  # fmt: skip
    assert await drain(inbox, later=True) == []


async def test_drain_that_never_ends_raises_not_at_rest(inbox: Inbox) -> None:
    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await deliver(inbox, "stripe", type="more.work")

    await deliver(inbox, "stripe")
    with pytest.raises(NotAtRest, match=r"events are still due after 20 attempts in .* stripe more\.work"):
        await drain(inbox, most=20)


async def test_drain_runs_effects_unless_effects_is_false(make_inbox: Callable[..., Inbox]) -> None:
    mails: list[str] = []
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect(retry=Retry(attempts=3))
    async def mail(effect: Effect, to: str) -> None:
        mails.append(to)
        if len(mails) == 1:
            raise ConnectionError("no route")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", mail, to="jane")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        recorded = await drain(inbox, later=True, effects=False)
        assert len(recorded) == 1 and recorded.effects == [] and mails == []
        first = await drain(inbox)
        assert first == [] and [(effect.status, effect.last_error) for effect in first.effects] == [
            (EffectState.RETRYING, "ConnectionError: no route")
        ]
        assert (await drain(inbox)).effects == []  # it is not due yet
        last = await drain(inbox, later=True)
        assert last.effects == [Performed("mail:in_1", "mail", {"to": "jane"}, EffectState.DONE, 2, None)]
        await deliver(inbox, "stripe", type="invoice.paid")
        again = await drain(inbox, later=True)
        assert len(again) == 1 and again.effects == []
    assert mails == ["jane", "jane"]


async def test_drain_rescues_an_effect_whose_process_died(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.effect(name="mail")(lambda effect: None)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "mail")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        await drain(inbox, effects=False)
        assert await inbox._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "mail", 30.0)])
        assert (await drain(inbox)).effects == []
        await advance(inbox, "31s")
        (performed,) = (await drain(inbox, later=True)).effects
    assert (performed.status, performed.attempts) == (EffectState.DONE, 2)


async def test_prune_deletes_effect_keys_past_their_retention(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox(worker=False, effect_retention="60d")
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.effect(name="mail")(lambda effect: None)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "mail")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        await drain(inbox)
        for after, left in (("50d", 1), ("11d", 0)):
            await advance(inbox, after)
            await prune(inbox)
            assert rows("SELECT count(*) FROM webhook_effects") == [(left,)]


async def test_drain_on_an_inbox_with_a_worker_is_an_error(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=True)
    async with inbox.lifespan():
        with pytest.raises(RuntimeError, match="this inbox runs a worker"):
            await drain(inbox)


async def test_receipt_of_a_crashed_worker_is_handled_after_its_lease_expires(inbox: Inbox) -> None:
    attempts = fail_first_attempts(inbox, 0, first=0, most=0)
    await deliver(inbox, "stripe")
    (crashed,) = await crash(inbox)
    assert (crashed.status, crashed.attempts) == (State.PROCESSING, 1)
    assert await drain(inbox) == []
    await advance(inbox, "31s")
    (done,) = await drain(inbox)
    assert (done.status, done.attempts, attempts) == (State.PROCESSED, 2, [2])


async def test_replayed_event_is_handled_again(inbox: Inbox) -> None:
    attempts = fail_first_attempts(inbox, 0)
    answer = await deliver(inbox, "stripe")
    assert await replay(inbox, answer) == 0, "an event that is not finished is not replayed"
    await drain(inbox)
    assert await replay(inbox, answer) == 1
    (again,) = await drain(inbox)
    assert (again.status, again.replays, attempts) == (State.PROCESSED, 1, [1, 1])


async def test_event_is_accepted_again_after_its_dedupe_window(inbox: Inbox) -> None:
    fail_first_attempts(inbox, 0)
    first = await deliver(inbox, "stripe", id="evt_1")
    await drain(inbox)
    await advance(inbox, "20d")
    assert not await prune(inbox)
    assert (await deliver(inbox, "stripe", id="evt_1")).outcome == (200, "duplicate")
    await advance(inbox, "11d")
    assert (await prune(inbox)).receipts == {"stripe": 1}
    again = await deliver(inbox, "stripe", id="evt_1")
    assert again.outcome == (202, "accepted") and again.receipt != first.receipt


async def test_perform_rescues_an_effect_whose_process_died(inbox: Inbox) -> None:
    calls: list[int] = []
    inbox.effect(name="send")(lambda effect: calls.append(effect.attempt))

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await event.effect("mail", "send")

    await deliver(inbox, "stripe", type="invoice.paid")
    await drain(inbox, effects=False)
    assert len(await inbox._runtime.store.effects.lease(1, "dead", [EffectTarget("function", "send", 45.0)])) == 1
    assert await perform(inbox) == 0
    await advance(inbox, "46s")
    await perform(inbox)  # the effect is rescued, and due again later
    await advance(inbox, "10m")
    assert await perform(inbox) == 1 and calls == [2]
