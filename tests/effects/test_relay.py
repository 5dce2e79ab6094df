"""The relay: what has committed is performed, at least once, with one idempotency key, and marked under a fence."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import ConfigurationError, Effect, Event, Fail, Inbox, Retry, RetryLater, StoreUnavailable
from oncehook.cli.serve import listen, make_server
from oncehook.effects import relay
from oncehook.model.effect import EffectState, SettledEffect
from oncehook.model.lease import Leased, Settled
from oncehook.model.retry import Postpone
from oncehook.model.states import State
from oncehook.operations.prune import prune
from oncehook.store.rows import EffectTarget
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio

EFFECTS = "SELECT key, status, attempts, last_error FROM webhook_effects ORDER BY key"
SEND = [EffectTarget("function", "send", 30.0)]


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox without a worker yet; each event asks for the effect `send`."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*", retry=QUICK)
    async def ask(event: Event) -> None:
        await event.effect(f"send:{event.id}", "send", number=1)

    async with inbox.lifespan():
        yield inbox


async def record(inbox: Inbox, *ids: str) -> None:
    """Have events handled, and their effects recorded, by nobody who could perform them."""
    await claim(inbox, *ids)
    for one in await inbox._runtime.store.leases.take(100, 30, "the test"):
        outbox = inbox._runtime.outbox()
        await Event(one, outbox).effect(f"send:{one.event_id}", "send", number=1)
        assert await outbox.settle([make_settled(one)])


def make_settled(one: Leased) -> Settled:
    return Settled(one.receipt, one.lease, State.PROCESSED, "processed")


def now(rows: Rows, status: str, count: int = 1) -> Callable[[], bool]:
    return lambda: rows(f"SELECT count(*) FROM webhook_effects WHERE status = '{status}'") == [(count,)]


async def test_a_transient_failure_is_tried_again_with_the_same_key(inbox: Inbox, rows: Rows) -> None:
    seen: list[tuple[int, str]] = []

    @inbox.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        seen.append((effect.attempt, effect.idempotency_key))
        if effect.attempt < 3:
            raise ConnectionError("no route")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(now(rows, "done"))
    assert [attempt for attempt, _ in seen] == [1, 2, 3] and len({key for _, key in seen}) == 1
    assert rows(EFFECTS) == [("send:evt_1", "done", 3, None)]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_after_its_attempts_it_is_given_up_and_replayed_by_hand(inbox: Inbox, rows: Rows, kind: str) -> None:
    mended = threading.Event()

    def plain(effect: Effect, number: int) -> None:
        if not mended.is_set():
            raise ConnectionError("no route")

    async def asynchronous(effect: Effect, number: int) -> None:
        plain(effect, number)

    inbox.effect(name="send", retry=QUICK)(plain if kind == "plain" else asynchronous)
    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(now(rows, "failed"))
    assert rows(EFFECTS) == [("send:evt_1", "failed", 3, "ConnectionError: no route")]
    [(id,)] = rows("SELECT id FROM webhook_effects")
    mended.set()
    assert await inbox._runtime.store.effects.replay([id], "jane") == [id]
    await eventually(now(rows, "done"))
    assert await inbox._runtime.store.effects.replay([id], "jane") == []  # what is done is never repeated
    assert rows(EFFECTS) == [("send:evt_1", "done", 1, None)]
    assert rows("SELECT actor, action FROM webhook_audit") == [("jane", "replay effects")]


async def test_giving_up_is_at_once_and_asking_for_later_waits(inbox: Inbox, rows: Rows) -> None:
    @inbox.effect
    async def send(effect: Effect, number: int) -> None:
        raise Fail("no such mailbox") if effect.key.endswith("1") else RetryLater("full", after="1h")

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(now(rows, "failed"))
    await eventually(now(rows, "retrying"))
    assert rows(EFFECTS) == [
        ("send:evt_1", "failed", 1, "Fail: no such mailbox"),
        ("send:evt_2", "retrying", 1, "RetryLater: full"),
    ]


async def test_a_call_that_hangs_is_ended_and_tried_again(inbox: Inbox, rows: Rows) -> None:
    @inbox.effect(timeout="0.1s", retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        if effect.attempt == 1:
            await asyncio.Event().wait()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(now(rows, "done"))
    assert rows(EFFECTS)[0][2] == 2


async def test_what_is_not_registered_here_is_left_and_told(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    @inbox.effect
    async def other(effect: Effect) -> None: ...

    await record(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: any(line["event"] == "effect_unregistered" for line in lines()))
    [told] = [line for line in lines() if line["event"] == "effect_unregistered"]
    assert (told["kind"], told["target"], told["effects"]) == ("function", "send", 1)
    assert rows(EFFECTS) == [("send:evt_1", "waiting", 0, None)]
    inbox.effect(name="send")(lambda effect, number: None)  # another process would have it
    await eventually(now(rows, "done"))


async def test_one_whose_process_died_and_whose_function_is_gone_is_told_of_too(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    await record(inbox, "evt_1")
    await inbox._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "send", 0.0)])
    after_a_deployment = relay.Relay(inbox._runtime.store, inbox._runtime.effects)
    while not lines():  # the lease of no seconds runs out with the database's next tick
        assert await after_a_deployment.rescue() == 0
    assert [(line["event"], line["target"]) for line in lines()] == [("effect_unregistered", "send")]


async def test_nothing_needs_a_wake_up(inbox: Inbox, rows: Rows, make_inbox: Callable[..., Inbox]) -> None:
    """What another process has recorded is found by looking."""
    called = asyncio.Event()

    @inbox.effect
    async def send(effect: Effect, number: int) -> None:
        called.set()

    inbox._runtime.start_worker()
    other = make_inbox(worker=False)
    other.source("stripe", secrets=["whsec_test"])
    async with other.lifespan():
        await record(other, "evt_1")
    await asyncio.wait_for(called.wait(), 20)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_an_effect_that_commits_late_is_not_passed_over(inbox: Inbox, rows: Rows) -> None:
    """Its id is smaller than that of one which is done by then. On SQLite transactions take turns."""
    calls: list[str] = []

    @inbox.effect
    async def send(effect: Effect, number: int) -> None:
        calls.append(effect.key)

    await claim(inbox, "evt_1", "evt_2")
    first, second = await inbox._runtime.store.leases.take(2, 30, "the test")
    inbox._runtime.start_worker()
    late = inbox._runtime.outbox()
    await Event(first, late).effect("late", "send", number=1)
    early = inbox._runtime.outbox()
    await Event(second, early).effect("early", "send", number=1)
    assert await early.settle([make_settled(second)])
    await eventually(now(rows, "done"))
    assert await late.settle([make_settled(first)])
    await eventually(now(rows, "done", 2))
    assert calls == ["early", "late"]


# -- leases and the fence -------------------------------------------------------------------------------------------


async def test_a_late_mark_matches_nothing(inbox: Inbox, rows: Rows) -> None:
    await record(inbox, "evt_1")
    [zombie] = await inbox._runtime.store.effects.lease(1, "zombie", [EffectTarget("function", "send", 0.0)])
    inbox.effect(name="send")(lambda effect, number: None)
    relay_ = relay.Relay(inbox._runtime.store, inbox._runtime.effects)
    while not await relay_.rescue():  # the lease of no seconds runs out with the database's next tick
        pass
    assert (
        await inbox._runtime.store.effects.settle([SettledEffect(zombie.id, zombie.lease, EffectState.DONE)]) == set()
    )
    make_due(rows)
    [again] = await inbox._runtime.store.effects.lease(1, "other", SEND, rescued=True)
    assert (again.lease, again.attempt) == (zombie.lease + 1, 2)
    assert (
        await inbox._runtime.store.effects.settle([SettledEffect(zombie.id, zombie.lease, EffectState.DONE)]) == set()
    )
    assert await inbox._runtime.store.effects.settle([SettledEffect(again.id, again.lease, EffectState.DONE)]) == {
        again.id
    }


def make_due(rows: Rows) -> None:
    """A crash is retried after a pause; here at once."""
    rows("UPDATE webhook_effects SET next_attempt_at = NULL RETURNING id")


async def test_an_effect_that_kills_its_process_is_given_up_after_its_attempts_and_takes_no_neighbour(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    await record(inbox, "evt_1", "evt_2")
    inbox.effect(name="send", retry=Retry(attempts=3, first=0, most=0))(lambda effect, number: None)
    relay_ = relay.Relay(inbox._runtime.store, inbox._runtime.effects)
    gone = [EffectTarget("function", "send", 0.0)]
    first = await inbox._runtime.store.effects.lease(10, "gone", gone)
    assert len(first) == 2  # the process died with both
    await rescue_all(relay_, rows)
    assert await inbox._runtime.store.effects.lease(10, "other", SEND) == []  # now each is taken alone
    for _ in range(2):
        make_due(rows)
        [poison] = await inbox._runtime.store.effects.lease(1, "gone", gone, rescued=True)
        assert poison.key == "send:evt_1"
        await rescue_all(relay_, rows)
    assert [row[:3] for row in rows(EFFECTS)] == [("send:evt_1", "failed", 3), ("send:evt_2", "retrying", 1)]
    told = [(line["event"], line["key"], line["attempt"]) for line in lines() if line["event"].startswith("effect_")]
    assert told[-2:] == [("effect_lease_expired", "send:evt_1", 3), ("effect_failed", "send:evt_1", 3)]
    inbox._runtime.start_worker()
    await eventually(now(rows, "done"))


async def rescue_all(relay_: relay.Relay, rows: Rows) -> None:
    while rows("SELECT count(*) FROM webhook_effects WHERE status = 'performing'") != [(0,)]:
        await relay_.rescue()


async def test_a_crashed_one_gets_its_turn_although_others_keep_coming(inbox: Inbox, rows: Rows) -> None:
    await record(inbox, "evt_0")
    await inbox._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "send", 0.0)])

    @inbox.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        await asyncio.sleep(0.01)

    running = relay.Relay(inbox._runtime.store, inbox._runtime.effects, concurrency=2, rescue_interval=0.1)
    running.start()
    done = "SELECT count(*) FROM webhook_effects WHERE key = 'send:evt_0' AND status = 'done'"
    number = 0
    try:
        while rows(done) != [(1,)]:
            number += 1
            assert number < 2000
            await record(inbox, f"evt_{number:04d}")
    finally:
        await running.stop()


async def test_others_are_performed_while_a_crashed_one_waits_for_a_long_call_to_end(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is put off, and comes later."""
    monkeypatch.setattr("oncehook.concurrency.quarantine.INTERVAL", 0.5)
    monkeypatch.setattr("oncehook.concurrency.quarantine.FIRST_PATIENCE", 0.05)
    await record(inbox, "evt_0")
    await inbox._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "send", 0.0)])
    began, go_on, beside = asyncio.Event(), asyncio.Event(), []

    @inbox.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        if effect.key == "send:evt_0":
            beside.append(len(running._running))
        elif effect.key == "send:evt_1":
            began.set()
            await go_on.wait()

    running = relay.Relay(inbox._runtime.store, inbox._runtime.effects, concurrency=4, poll=0.05, rescue_interval=0.1)
    await record(inbox, "evt_1")
    running.start()
    try:
        await asyncio.wait_for(began.wait(), 20)
        await eventually(lambda: running._quarantine.item is not None)
        await record(inbox, "evt_2")
        await eventually(now(rows, "done"))
        go_on.set()
        await eventually(now(rows, "done", 3))
        assert beside == [1]
    finally:
        go_on.set()
        await running.stop()


async def test_between_two_crashed_ones_others_have_their_turn(inbox: Inbox, rows: Rows) -> None:
    await record(inbox, *(f"evt_{n}" for n in range(3)))
    await inbox._runtime.store.effects.lease(3, "gone", [EffectTarget("function", "send", 0.0)])
    order: list[str] = []

    @inbox.effect(retry=Retry(attempts=3, first=0, most=0))
    async def send(effect: Effect, number: int) -> None:
        order.append(effect.key)
        if len(order) == 1:
            await record(inbox, "other_1", "other_2")
            await asyncio.sleep(0.5)  # others have as long

    running = relay.Relay(inbox._runtime.store, inbox._runtime.effects, concurrency=4, rescue_interval=0.1)
    await rescue_all(running, rows)
    running.start()
    try:
        await eventually(now(rows, "done", 5))
    finally:
        await running.stop()
    assert sorted(order[1:3]) == ["send:other_1", "send:other_2"]


async def test_stopping_lets_a_call_finish_and_leases_no_more(inbox: Inbox, rows: Rows) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.effect
    async def send(effect: Effect, number: int) -> None:
        started.set()
        await go_on.wait()

    await record(inbox, "evt_1", "evt_2", "evt_3")
    running = relay.Relay(inbox._runtime.store, inbox._runtime.effects, concurrency=1)
    running.start()
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(running.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert [row[1] for row in rows(EFFECTS)] == ["done", "waiting", "waiting"]


async def test_a_call_that_a_stop_has_cancelled_goes_back_and_uses_no_attempt(inbox: Inbox, rows: Rows) -> None:
    started = asyncio.Event()

    @inbox.effect(retry=Retry(attempts=1))
    async def send(effect: Effect, number: int) -> None:
        started.set()
        await asyncio.Event().wait()

    await record(inbox, "evt_1")
    running = relay.Relay(inbox._runtime.store, inbox._runtime.effects)
    running.start()
    await asyncio.wait_for(started.wait(), 10)
    await running.stop(grace=0.05)
    assert rows(EFFECTS) == [("send:evt_1", "waiting", 0, None)]


@pytest.mark.parametrize("ended_by", ["inbox", "server"])
async def test_handlers_and_effects_have_one_grace_at_the_same_time(
    make_inbox: Callable[..., Inbox], rows: Rows, ended_by: str
) -> None:
    inbox = make_inbox(worker=False, stop_grace="1s")
    inbox.source("stripe", secrets=["whsec_test"])
    started: set[str] = set()
    ended: dict[str, float] = {}

    async def hang(name: str) -> None:
        started.add(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended[name] = time.monotonic()

    @inbox.effect(retry=Retry(attempts=1))
    async def send(effect: Effect, number: int) -> None:
        await hang("effect")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def paid(event: Event) -> None:
        await hang("handler")

    await inbox.start()
    await record(inbox, "evt_1")
    await claim(inbox, "evt_2")
    inbox._runtime.start_worker()
    await eventually(lambda: started == {"effect", "handler"})
    server = make_server(inbox)
    serving = asyncio.create_task(server.serve(sockets=[listen("127.0.0.1", 0)]))
    await eventually(lambda: server.started)
    began = time.monotonic()
    if ended_by == "server":
        server.should_exit = True
        await serving
        assert inbox._runtime.worker is inbox._runtime.relay is None
    await inbox.stop()
    assert min(ended.values()) - began > 0.9
    assert abs(ended["effect"] - ended["handler"]) < 0.8, "one had its grace after the other"
    server.should_exit = True
    await serving
    assert rows(EFFECTS) == [("send:evt_1", "waiting", 0, None)]
    states = rows("SELECT event_id, status, attempts FROM webhook_receipts ORDER BY id")
    assert states == [("evt_1", "processed", 1), ("evt_2", "received", 0)]


async def test_a_function_that_raises_cancelled_by_itself_fails_as_by_any_error(inbox: Inbox, rows: Rows) -> None:
    @inbox.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(now(rows, "failed"))
    assert rows(EFFECTS) == [("send:evt_1", "failed", 3, "CancelledError: ")]


async def test_what_is_not_to_be_had_now_goes_back_and_uses_no_attempt(inbox: Inbox, rows: Rows) -> None:
    @inbox.effect(retry=Retry(attempts=2, first=0, most=0))
    async def send(effect: Effect, number: int) -> None:
        calls.append(effect.attempt)
        if len(calls) == 1:
            raise ConnectionError("no route")
        if len(calls) < 5:
            raise Postpone("busy", after=0.05)

    calls: list[int] = []
    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(now(rows, "done"))
    assert calls == [1, 2, 2, 2, 2] and rows(EFFECTS) == [("send:evt_1", "done", 2, None)]


async def test_arguments_that_were_erased_are_not_guessed(inbox: Inbox, rows: Rows) -> None:
    inbox.effect(name="send")(lambda effect, number: None)
    await record(inbox, "evt_1")
    [(receipt,)] = rows("SELECT id FROM webhook_receipts")
    assert await inbox._runtime.store.retention.erase([receipt], None, "jane", "{}") == 1
    inbox._runtime.start_worker()
    await eventually(now(rows, "failed"))
    assert rows(EFFECTS) == [("send:evt_1", "failed", 1, "Fail: the effect's arguments were erased")]
    [(id,)] = rows("SELECT id FROM webhook_effects")
    assert await inbox._runtime.store.effects.replay([id], "jane") == []


async def test_every_line_of_a_performed_effect_says_which_one(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    @inbox.effect(retry=Retry(attempts=2, first=0, most=0))
    async def send(effect: Effect, number: int) -> None:
        raise ConnectionError("no route")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(now(rows, "failed"))
    await eventually(lambda: any(line["event"] == "effect_failed" for line in lines()))
    told = [line for line in lines() if line["event"].startswith("effect_")]
    assert [line["event"] for line in told] == ["effect_retrying", "effect_failed"]
    for line in told:
        assert (line["source"], line["key"], line["target"]) == ("stripe", "send:evt_1", "send")
        assert line["error"] == "ConnectionError: no route" and line["receipt"] and line["effect"]


async def test_drain_performs_what_is_due_and_returns(inbox: Inbox, rows: Rows) -> None:
    calls: list[str] = []
    inbox.effect(name="send")(lambda effect, number: calls.append(effect.key))
    await record(inbox, *(f"evt_{n:02d}" for n in range(40)))
    running = relay.Relay(inbox._runtime.store, inbox._runtime.effects)
    assert len(await running.drain()) == 40
    assert (len(set(calls)), now(rows, "done", 40)()) == (40, True)


# -- a database that does not answer --------------------------------------------------------------------------------


async def test_a_mark_whose_answer_was_lost_is_written_again(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    calls: list[str] = []
    inbox.effect(name="send")(lambda effect, number: calls.append(effect.key))
    await record(inbox, "evt_1", "evt_2")
    native, failures = inbox._runtime.store.effects.settle, 2

    async def lost(settled: Any) -> set[int]:
        nonlocal failures
        failures -= 1
        landed = await native(settled) if failures == 0 else set()
        if failures >= 0:
            raise StoreUnavailable("no answer")
        return await native(settled) | landed

    inbox._runtime.store.effects.settle = lost  # type: ignore[method-assign]
    assert len(await relay.Relay(inbox._runtime.store, inbox._runtime.effects).drain()) == 2
    await eventually(now(rows, "done", 2))
    assert sorted(calls) == ["send:evt_1", "send:evt_2"]
    assert [line for line in lines() if line["event"] == "effect_lease_lost"] == []


async def test_keys_must_outlive_the_receipts_that_could_ask_again(make_inbox: Callable[..., Inbox]) -> None:
    short = make_inbox(effect_retention="10d")
    short.source("stripe", secrets=["whsec_test"])
    with pytest.raises(ConfigurationError, match=r"effect_retention is 10d: .* the minimum is 30d"):
        await short.start()
    enough = make_inbox(effect_retention="30d")
    enough.source("stripe", secrets=["whsec_test"])
    async with enough.lifespan():
        pass


async def test_a_turn_of_pruning_takes_old_keys_and_arguments_of_what_is_done(inbox: Inbox, rows: Rows) -> None:
    inbox.effect(name="send")(lambda effect, number: None)
    await record(inbox, *(f"evt_{n}" for n in range(6)))
    await relay.Relay(inbox._runtime.store, inbox._runtime.effects).drain()
    long_ago = "'2026-01-01T00:00:00.000000Z'"
    old = "('send:evt_1', 'send:evt_2', 'send:evt_3')"
    rows(f"UPDATE webhook_effects SET done_at = {long_ago}, created_at = {long_ago} WHERE key IN {old}")
    rows("UPDATE webhook_effects SET status = 'failed' WHERE key = 'send:evt_1'")
    rows("UPDATE webhook_effects SET status = 'waiting' WHERE key = 'send:evt_2'")
    pruned = await prune(inbox._runtime.store, inbox._runtime.horizons.values())
    assert pruned is not None and pruned.effects == 0
    assert rows("SELECT key FROM webhook_effects WHERE args IS NULL") == [("send:evt_3",)]
    pruned = await prune(inbox._runtime.store, inbox._runtime.horizons.values(), effects=90 * 86400.0)
    assert pruned is not None and pruned.effects == 1
    kept = [row[0] for row in rows("SELECT key FROM webhook_effects ORDER BY key")]
    assert kept == [f"send:evt_{n}" for n in (0, 1, 2, 4, 5)]
