"""The outbox without a worker: calls that are gathered or closed, and a settle that fails or comes too late."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry, TransactionClosed
from oncehook.effects.effect import EffectRefused
from oncehook.handlers.order import Advance
from oncehook.handlers.outbox import AlreadyHandled, DeferredCall, EffectRequest, NotAwaited, Outbox
from oncehook.model.lease import Leased, Settled
from oncehook.model.states import State
from oncehook.testing import drain
from tests.support.events import Rows
from tests.support.processor import lease
from tests.support.waiting import next_turn
from tests.support.work import claim

pytestmark = pytest.mark.anyio

KEYS = "SELECT key FROM webhook_effects ORDER BY key"


async def open_outbox(inbox: Inbox, event_id: str = "evt_1") -> tuple[Outbox, Leased]:
    """The outbox of a handler call for a leased event, with the effect `send`."""
    inbox.effect(name="send")(lambda effect: None)
    (leased,) = await lease(inbox, event_id)
    outbox = inbox._runtime.start_processor().transaction()
    assert isinstance(outbox, Outbox)
    return outbox, leased


def processed(leased: Leased, fence: int | None = None) -> list[Settled]:
    return [Settled(leased.receipt, fence or leased.lease, State.PROCESSED, "processed")]


def make_advance(leased: Leased, version: int, id: str = "in_1") -> Advance:
    facts: dict[str, Any] = {"state": None, "is_terminal": False, "at": None, "version": version, "event_id": "evt_1"}
    return Advance(scope="stripe", kind="invoice", id=id, receipt=leased.receipt, **facts)


async def fail(*_: object) -> None:
    raise ConnectionError("the database is gone")


async def test_calls_can_be_gathered_and_run_once(inbox: Inbox, rows: Rows) -> None:
    answers: list[bool] = []
    inbox.effect(name="send")(lambda effect: None)

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        answers.extend(await asyncio.gather(*(event.effect(key, "send") for key in ("mail:1", "mail:2", "mail:1"))))

    await claim(inbox, "evt_1")
    await drain(inbox, effects=False)
    assert (answers, rows(KEYS)) == ([True, True, False], [("mail:1",), ("mail:2",)])


async def test_effect_that_is_requested_while_another_is_written_is_written_too(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, leased = await open_outbox(inbox)
    run_query = outbox.run_query
    during: list[DeferredCall[bool]] = []

    async def request_meanwhile(*arguments: Any) -> Any:
        found = await run_query(*arguments)
        if not during:
            during.append(outbox.effect(leased, "mail:2", "send", {}, None))
        return found

    monkeypatch.setattr(outbox, "run_query", request_meanwhile)
    assert await outbox.effect(leased, "mail:1", "send", {}, None)
    assert await during[0], "the effect is new"
    assert await outbox.settle(processed(leased)), "the lease is not lost"
    assert rows(KEYS) == [("mail:1",), ("mail:2",)]


async def test_cancelled_call_raises_in_its_task(inbox: Inbox) -> None:
    outbox, leased = await open_outbox(inbox)
    task = asyncio.ensure_future(outbox.effect(leased, "mail:1", "send", {}, None))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await outbox.rollback()


async def test_call_can_be_closed_before_and_after_its_start(inbox: Inbox) -> None:
    outbox, _ = await open_outbox(inbox)
    ended: list[str] = []

    async def wait() -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("closed")
        return True

    call = outbox._defer("advance", wait)
    call.close()
    assert ended == []
    call.send(None)
    call.close()
    assert ended == ["closed"]
    await outbox.rollback()


async def test_call_that_was_not_awaited_names_its_method(inbox: Inbox) -> None:
    outbox, leased = await open_outbox(inbox)
    advance = make_advance(leased, 1)
    for name, call in (
        ("effect", outbox.effect(leased, "a", "send", {}, None)),
        ("publish", outbox.publish(leased, "orders", 1, None, None)),
        ("advance", outbox.advance(leased, advance)),
        ("is_stale", outbox.is_stale(advance)),
        ("canonical", outbox.canonical(leased, None)),
    ):
        with pytest.raises(NotAwaited, match=rf"event\.{name}\(…\) was not awaited: write `await event\.{name}"):
            bool(call)
    await outbox.rollback()


async def test_publish_names_the_message_that_cannot_be_stored(inbox: Inbox) -> None:
    outbox, leased = await open_outbox(inbox)
    with pytest.raises(EffectRefused, match="message"):
        outbox.publish(leased, "orders", object(), None, None)
    for topic in ("", "a\x00b", 3):
        with pytest.raises(EffectRefused, match="the topic is"):
            outbox.publish(leased, topic, 1, None, None)  # type: ignore[arg-type]
    await outbox.rollback()


async def test_commit_is_reported_once_and_a_lost_lease_is_not(inbox: Inbox, rows: Rows) -> None:
    outbox, leased = await open_outbox(inbox)
    reported: list[Outbox] = []
    outbox._committed = reported.append
    outbox.effect(leased, "mail:1", "send", {}, None)
    assert await outbox.settle(processed(leased, leased.lease + 1)) is False
    assert (reported, rows(KEYS)) == ([], [])
    again, _ = inbox._runtime.start_processor().transaction(), leased
    assert isinstance(again, Outbox)
    again._committed = reported.append
    again.effect(leased, "mail:1", "send", {}, None)
    assert await again.settle(processed(leased)) is True
    assert (reported, rows(KEYS)) == ([again], [("mail:1",)])
    assert [request.key for request in again.requests] == ["mail:1"]


async def assert_rolled_back(outbox: Outbox, leased: Leased, settle: Awaitable[object], rows: Rows) -> None:
    with pytest.raises(ConnectionError, match="is gone"):
        await settle
    with pytest.raises(TransactionClosed):
        outbox.effect(leased, "late", "send", {}, None)
    assert rows("SELECT status FROM webhook_receipts") == [("processing",)]


async def test_settle_whose_effects_cannot_be_written_rolls_back(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, leased = await open_outbox(inbox)
    await outbox.effect(leased, "mail:1", "send", {}, None)
    monkeypatch.setattr(outbox, "flush", fail)
    await assert_rolled_back(outbox, leased, outbox.settle(processed(leased)), rows)
    assert rows(KEYS) == []


async def test_event_that_begins_again_and_fails_is_rolled_back(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, leased = await open_outbox(inbox)
    await outbox.effect(leased, "mail:1", "send", {}, None)
    first = EffectRequest(leased=leased, scope="stripe", key="once:1", kind="once", target="once", args="{}")

    async def too_late() -> None:
        raise AlreadyHandled(first)

    monkeypatch.setattr(outbox, "flush", too_late)
    outbox.project_again = fail
    await assert_rolled_back(outbox, leased, outbox.settle(processed(leased)), rows)


async def test_event_that_begins_again_keeps_only_its_noop_and_projection(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, leased = await open_outbox(inbox)
    await outbox.effect(leased, "mail:1", "send", {}, None)
    first = EffectRequest(leased=leased, scope="stripe", key="once:1", kind="once", target="once", args="{}")
    projected: list[str] = []

    async def too_late() -> None:
        raise AlreadyHandled(first)

    async def project() -> None:
        projected.append("again")

    monkeypatch.setattr(outbox, "flush", too_late)
    outbox.project_again = project
    assert await outbox.settle(processed(leased)) is True
    assert (projected, rows(KEYS)) == (["again"], [])
    assert rows("SELECT reason, scope, key FROM webhook_noops") == [("effect", "stripe", "once:1")]
    assert (outbox.requests, [noop.key for noop in outbox.noops]) == ([], ["once:1"])


@pytest.mark.parametrize("moment", ["flush", "begin again"])
async def test_second_cancellation_does_not_interrupt_the_rollback(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    outbox, leased = await open_outbox(inbox)
    await outbox.effect(leased, "mail:1", "send", {}, None)
    entered, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    rollback: Callable[[], Awaitable[None]] = outbox.rollback

    async def slow() -> None:
        entered.set()
        await gate.wait()
        await rollback()
        ended.set()

    monkeypatch.setattr(outbox, "rollback", slow)
    if moment == "flush":
        monkeypatch.setattr(outbox, "flush", fail)
        work: Any = outbox.settle(processed(leased))
    else:
        outbox.project_again = fail
        work = outbox._begin_again(
            EffectRequest(leased=leased, scope="stripe", key="once:1", kind="once", target="once", args="{}")
        )
    task = asyncio.create_task(work)
    await asyncio.wait_for(entered.wait(), 20)
    task.cancel()
    await next_turn()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), 20)


async def test_outbox_gives_the_connection_of_its_transaction(inbox: Inbox) -> None:
    outbox, _ = await open_outbox(inbox)
    used = [outbox.used]
    assert await outbox.connection() is not None
    assert [*used, outbox.used] == [False, True]
    await outbox.rollback()


async def test_entity_is_stale_only_before_its_newest_event_inside_and_outside_of_the_transaction(inbox: Inbox) -> None:
    outbox, leased = await open_outbox(inbox)
    assert await outbox.is_stale(make_advance(leased, 1)) is False, "it is not known yet"
    assert await outbox.advance(leased, make_advance(leased, 2)) is True
    for _ in range(2):
        assert await outbox.is_stale(make_advance(leased, 1)) is True
        assert await outbox.is_stale(make_advance(leased, 2)) is False
        assert await outbox.is_stale(make_advance(leased, 1, "in_2")) is False
        if outbox.used:
            assert await outbox.settle(processed(leased))
            outbox = inbox._runtime.outbox()
    await outbox.rollback()
