"""The relay runs effects after their commit: at least once, with one idempotency key, and with retries."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Effect, Event, Fail, Inbox, Retry, RetryLater
from oncehook.effects import relay
from oncehook.model.retry import Postpone
from tests.support.effects import make_settled, record
from tests.support.events import Rows
from tests.support.waiting import eventually, hang
from tests.support.work import QUICK, claim, effects_are

pytestmark = pytest.mark.anyio


EFFECTS = "SELECT key, status, attempts, last_error FROM webhook_effects ORDER BY key"


async def test_a_failed_effect_is_retried_with_the_same_idempotency_key(sending: Inbox, rows: Rows) -> None:
    seen: list[tuple[int, str]] = []

    @sending.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        seen.append((effect.attempt, effect.idempotency_key))
        if effect.attempt < 3:
            raise ConnectionError("no route")

    await claim(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "done", 1))
    assert [attempt for attempt, _ in seen] == [1, 2, 3] and len({key for _, key in seen}) == 1
    assert rows(EFFECTS) == [("send:evt_1", "done", 3, None)]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_effect_fails_after_its_attempts_and_can_be_replayed(sending: Inbox, rows: Rows, kind: str) -> None:
    repaired = threading.Event()

    def plain(effect: Effect, number: int) -> None:
        if not repaired.is_set():
            raise ConnectionError("no route")

    async def asynchronous(effect: Effect, number: int) -> None:
        plain(effect, number)

    sending.effect(name="send", retry=QUICK)(plain if kind == "plain" else asynchronous)
    await claim(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 1))
    assert rows(EFFECTS) == [("send:evt_1", "failed", 3, "ConnectionError: no route")]
    [(id,)] = rows("SELECT id FROM webhook_effects")
    repaired.set()
    assert await sending._runtime.store.effects.replay([id], "jane") == [id]
    await eventually(effects_are(rows, "done", 1))
    assert await sending._runtime.store.effects.replay([id], "jane") == []  # a completed effect is never repeated
    assert rows(EFFECTS) == [("send:evt_1", "done", 1, None)]
    assert rows("SELECT actor, action FROM webhook_audit") == [("jane", "replay effects")]


async def test_fail_ends_an_effect_immediately_and_retry_later_waits(sending: Inbox, rows: Rows) -> None:
    @sending.effect
    async def send(effect: Effect, number: int) -> None:
        raise Fail("no such mailbox") if effect.key.endswith("1") else RetryLater("full", after="1h")

    await claim(sending, "evt_1", "evt_2")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 1))
    await eventually(effects_are(rows, "retrying", 1))
    assert rows(EFFECTS) == [
        ("send:evt_1", "failed", 1, "Fail: no such mailbox"),
        ("send:evt_2", "retrying", 1, "RetryLater: full"),
    ]


async def test_a_hanging_effect_is_cancelled_at_its_timeout_and_retried(sending: Inbox, rows: Rows) -> None:
    @sending.effect(timeout="0.1s", retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        if effect.attempt == 1:
            await asyncio.Event().wait()

    await claim(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "done", 1))
    assert rows(EFFECTS)[0][2] == 2


async def test_an_effect_without_a_function_here_waits_and_is_logged(
    sending: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    @sending.effect
    async def other(effect: Effect) -> None: ...

    await record(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(lambda: any(line["event"] == "effect_unregistered" for line in lines()))
    [line] = [line for line in lines() if line["event"] == "effect_unregistered"]
    assert (line["kind"], line["target"], line["effects"]) == ("function", "send", 1)
    assert rows(EFFECTS) == [("send:evt_1", "waiting", 0, None)]
    sending.effect(name="send")(lambda effect, number: None)  # another process would have it
    await eventually(effects_are(rows, "done", 1))


async def test_the_relay_finds_effects_of_other_processes_by_polling(
    sending: Inbox, rows: Rows, make_inbox: Callable[..., Inbox]
) -> None:
    called = asyncio.Event()

    @sending.effect
    async def send(effect: Effect, number: int) -> None:
        called.set()

    sending._runtime.start_worker()
    other = make_inbox(worker=False)
    other.source("stripe", secrets=["whsec_test"])
    async with other.lifespan():
        for number in (1, 2, 3):  # the relay may find the first at its start, the others only by polling
            called.clear()
            await record(other, f"evt_{number}")
            await asyncio.wait_for(called.wait(), 20)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_an_effect_that_commits_late_is_not_skipped(sending: Inbox, rows: Rows) -> None:
    """Its id is smaller than that of an effect that is already done. SQLite runs one transaction at a time."""
    calls: list[str] = []

    @sending.effect
    async def send(effect: Effect, number: int) -> None:
        calls.append(effect.key)

    await claim(sending, "evt_1", "evt_2")
    first, second = await sending._runtime.store.leases.take(2, 30, "the test")
    sending._runtime.start_worker()
    late = sending._runtime.outbox()
    await Event(first, late).effect("late", "send", number=1)
    early = sending._runtime.outbox()
    await Event(second, early).effect("early", "send", number=1)
    assert await early.settle([make_settled(second)])
    await eventually(effects_are(rows, "done", 1))
    assert await late.settle([make_settled(first)])
    await eventually(effects_are(rows, "done", 2))
    assert calls == ["early", "late"]


async def test_an_effect_that_raises_cancelled_error_itself_has_failed(sending: Inbox, rows: Rows) -> None:
    @sending.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        inner = asyncio.create_task(hang())
        inner.cancel()
        await inner

    await claim(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 1))
    assert rows(EFFECTS) == [("send:evt_1", "failed", 3, "CancelledError: ")]


async def test_a_postponed_effect_uses_no_attempt(sending: Inbox, rows: Rows) -> None:
    @sending.effect(retry=Retry(attempts=2, first=0, most=0))
    async def send(effect: Effect, number: int) -> None:
        calls.append(effect.attempt)
        if len(calls) == 1:
            raise ConnectionError("no route")
        if len(calls) < 5:
            raise Postpone("busy", after=0.05)

    calls: list[int] = []
    await claim(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "done", 1))
    assert calls == [1, 2, 2, 2, 2] and rows(EFFECTS) == [("send:evt_1", "done", 2, None)]


async def test_an_effect_with_erased_arguments_fails(sending: Inbox, rows: Rows) -> None:
    sending.effect(name="send")(lambda effect, number: None)
    await record(sending, "evt_1")
    [(receipt,)] = rows("SELECT id FROM webhook_receipts")
    assert await sending._runtime.store.retention.erase([receipt], None, "jane", "{}") == 1
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 1))
    assert rows(EFFECTS) == [("send:evt_1", "failed", 1, "Fail: the effect's arguments were erased")]
    [(id,)] = rows("SELECT id FROM webhook_effects")
    assert await sending._runtime.store.effects.replay([id], "jane") == []


async def test_every_log_line_of_an_effect_names_it(
    sending: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    @sending.effect(retry=Retry(attempts=2, first=0, most=0))
    async def send(effect: Effect, number: int) -> None:
        raise ConnectionError("no route")

    await claim(sending, "evt_1")
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 1))
    await eventually(lambda: any(line["event"] == "effect_failed" for line in lines()))
    logged = [line for line in lines() if line["event"].startswith("effect_")]
    assert [line["event"] for line in logged] == ["effect_retrying", "effect_failed"]
    for line in logged:
        assert (line["source"], line["key"], line["target"]) == ("stripe", "send:evt_1", "send")
        assert line["error"] == "ConnectionError: no route" and line["receipt"] and line["effect"]


async def test_drain_runs_all_due_effects_and_returns(sending: Inbox, rows: Rows) -> None:
    calls: list[str] = []
    sending.effect(name="send")(lambda effect, number: calls.append(effect.key))
    await record(sending, *(f"evt_{n:02d}" for n in range(40)))
    running = relay.Relay(sending._runtime.store, sending._runtime.effects)
    assert len(await running.drain()) == 40
    assert (len(set(calls)), effects_are(rows, "done", 40)()) == (40, True)
