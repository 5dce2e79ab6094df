"""Leases of effects: fences, expired leases, quarantine, and what a stop releases."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from oncehook import Effect, Event, Inbox, Retry
from oncehook.cli.serve import listen, make_server
from oncehook.effects import relay
from oncehook.model.effect import EffectState, SettledEffect
from oncehook.store.rows import EffectTarget
from tests.support.effects import record
from tests.support.events import Rows
from tests.support.waiting import eventually, let_time_pass, next_turn
from tests.support.work import QUICK, claim, effects_are

pytestmark = pytest.mark.anyio


EFFECTS = "SELECT key, status, attempts, last_error FROM webhook_effects ORDER BY key"


SEND = [EffectTarget("function", "send", 30.0)]


def make_due(rows: Rows) -> None:
    """Make every effect due now. A crash is otherwise retried after a pause."""
    rows("UPDATE webhook_effects SET next_attempt_at = NULL RETURNING id")


async def rescue_all(rescuer: relay.Relay, rows: Rows) -> None:
    while rows("SELECT count(*) FROM webhook_effects WHERE status = 'performing'") != [(0,)]:
        await rescuer.rescue()


async def test_an_expired_effect_without_a_function_here_is_logged(
    sending: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    await record(sending, "evt_1")
    await sending._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "send", 0.0)])
    after_a_deployment = relay.Relay(sending._runtime.store, sending._runtime.effects)
    while not lines():  # the lease of zero seconds expires with the next tick of the database's clock
        assert await after_a_deployment.rescue() == 0
    assert [(line["event"], line["target"]) for line in lines()] == [("effect_unregistered", "send")]


async def test_settling_after_the_lease_was_lost_changes_nothing(sending: Inbox, rows: Rows) -> None:
    await record(sending, "evt_1")
    [zombie] = await sending._runtime.store.effects.lease(1, "zombie", [EffectTarget("function", "send", 0.0)])
    sending.effect(name="send")(lambda effect, number: None)
    rescuer = relay.Relay(sending._runtime.store, sending._runtime.effects)
    while not await rescuer.rescue():  # the lease of zero seconds expires with the next tick of the database's clock
        pass
    assert (
        await sending._runtime.store.effects.settle([SettledEffect(zombie.id, zombie.lease, EffectState.DONE)]) == set()
    )
    make_due(rows)
    [again] = await sending._runtime.store.effects.lease(1, "other", SEND, rescued=True)
    assert again.lease > zombie.lease and again.attempt == 2
    assert (
        await sending._runtime.store.effects.settle([SettledEffect(zombie.id, zombie.lease, EffectState.DONE)]) == set()
    )
    assert await sending._runtime.store.effects.settle([SettledEffect(again.id, again.lease, EffectState.DONE)]) == {
        again.id
    }


async def test_an_effect_that_kills_its_process_fails_after_its_attempts_without_affecting_others(
    sending: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    await record(sending, "evt_1", "evt_2")
    sending.effect(name="send", retry=Retry(attempts=3, first=0, most=0))(lambda effect, number: None)
    rescuer = relay.Relay(sending._runtime.store, sending._runtime.effects)
    gone = [EffectTarget("function", "send", 0.0)]
    first = await sending._runtime.store.effects.lease(10, "gone", gone)
    assert len(first) == 2  # the process died while both ran
    await rescue_all(rescuer, rows)
    assert await sending._runtime.store.effects.lease(10, "other", SEND) == []  # each is quarantined
    for _ in range(2):
        make_due(rows)
        [poison] = await sending._runtime.store.effects.lease(1, "gone", gone, rescued=True)
        assert poison.key == "send:evt_1"
        await rescue_all(rescuer, rows)
    assert [row[:3] for row in rows(EFFECTS)] == [("send:evt_1", "failed", 3), ("send:evt_2", "retrying", 1)]
    logged = [(line["event"], line["key"], line["attempt"]) for line in lines() if line["event"].startswith("effect_")]
    assert logged[-2:] == [("effect_lease_expired", "send:evt_1", 3), ("effect_failed", "send:evt_1", 3)]
    sending._runtime.start_worker()
    await eventually(effects_are(rows, "done", 1))


async def test_a_quarantined_effect_runs_although_other_effects_keep_arriving(sending: Inbox, rows: Rows) -> None:
    await record(sending, "evt_0")
    await sending._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "send", 0.0)])

    @sending.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        await let_time_pass(0.01)

    running = relay.Relay(sending._runtime.store, sending._runtime.effects, concurrency=2, rescue_interval=0.1)
    running.start()
    done = "SELECT count(*) FROM webhook_effects WHERE key = 'send:evt_0' AND status = 'done'"
    number = 0
    try:
        while rows(done) != [(1,)]:
            number += 1
            assert number < 2000
            await record(sending, f"evt_{number:04d}")
    finally:
        await running.stop()


async def test_other_effects_run_while_a_quarantined_one_waits_for_a_long_call(
    sending: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quarantine is postponed, and the effect runs later."""
    monkeypatch.setattr("oncehook.concurrency.quarantine.INTERVAL", 0.5)
    monkeypatch.setattr("oncehook.concurrency.quarantine.FIRST_PATIENCE", 0.05)
    await record(sending, "evt_0")
    await sending._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "send", 0.0)])
    began, go_on, beside = asyncio.Event(), asyncio.Event(), []

    @sending.effect(retry=QUICK)
    async def send(effect: Effect, number: int) -> None:
        if effect.key == "send:evt_0":
            beside.append(len(running._running))
        elif effect.key == "send:evt_1":
            began.set()
            await go_on.wait()

    running = relay.Relay(
        sending._runtime.store, sending._runtime.effects, concurrency=4, poll=0.05, rescue_interval=0.1
    )
    await record(sending, "evt_1")
    running.start()
    try:
        await asyncio.wait_for(began.wait(), 20)
        await eventually(lambda: running._quarantine.item is not None)
        await record(sending, "evt_2")
        await eventually(effects_are(rows, "done", 1))
        go_on.set()
        await eventually(effects_are(rows, "done", 3))
        assert beside == [1]
    finally:
        go_on.set()
        await running.stop()


async def test_other_effects_run_between_two_quarantined_ones(sending: Inbox, rows: Rows) -> None:
    await record(sending, *(f"evt_{n}" for n in range(3)))
    await sending._runtime.store.effects.lease(3, "gone", [EffectTarget("function", "send", 0.0)])
    order: list[str] = []

    @sending.effect(retry=Retry(attempts=3, first=0, most=0))
    async def send(effect: Effect, number: int) -> None:
        order.append(effect.key)
        if len(order) == 1:
            await record(sending, "other_1", "other_2")
            await let_time_pass(0.5)  # other effects get as much time as this one takes

    running = relay.Relay(sending._runtime.store, sending._runtime.effects, concurrency=4, rescue_interval=0.1)
    await rescue_all(running, rows)
    running.start()
    try:
        await eventually(effects_are(rows, "done", 5))
    finally:
        await running.stop()
    assert sorted(order[1:3]) == ["send:other_1", "send:other_2"]


async def test_lease_of_an_effect_outlasts_its_call(sending: Inbox, rows: Rows) -> None:
    """Else another relay would rescue the effect, and call it again, while the first call still runs."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @sending.effect(timeout="10m")
    async def send(effect: Effect, number: int) -> None:
        started.set()
        await go_on.wait()

    await record(sending, "evt_1")
    running = relay.Relay(sending._runtime.store, sending._runtime.effects)
    running.start()
    await asyncio.wait_for(started.wait(), 10)
    ((begin, end),) = rows("SELECT leased_at, lease_until FROM webhook_effects")
    if isinstance(begin, str):
        begin, end = datetime.fromisoformat(begin), datetime.fromisoformat(end)
    assert (end - begin).total_seconds() > 600
    go_on.set()
    await running.stop()


async def test_a_stop_lets_a_running_call_finish_and_leases_no_more(sending: Inbox, rows: Rows) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @sending.effect
    async def send(effect: Effect, number: int) -> None:
        started.set()
        await go_on.wait()

    await record(sending, "evt_1", "evt_2", "evt_3")
    running = relay.Relay(sending._runtime.store, sending._runtime.effects, concurrency=1)
    running.start()
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(running.stop())
    await next_turn()
    go_on.set()
    await stopping
    assert [row[1] for row in rows(EFFECTS)] == ["done", "waiting", "waiting"]


async def test_an_effect_that_a_stop_cancels_is_released_without_an_attempt(sending: Inbox, rows: Rows) -> None:
    started = asyncio.Event()

    @sending.effect(retry=Retry(attempts=1))
    async def send(effect: Effect, number: int) -> None:
        started.set()
        await asyncio.Event().wait()

    await record(sending, "evt_1")
    running = relay.Relay(sending._runtime.store, sending._runtime.effects)
    running.start()
    await asyncio.wait_for(started.wait(), 10)
    await running.stop(grace=0.05)
    assert rows(EFFECTS) == [("send:evt_1", "waiting", 0, None)]


@pytest.mark.parametrize("ended_by", ["inbox", "server"])
async def test_handlers_and_effects_share_one_grace_period(
    make_inbox: Callable[..., Inbox], rows: Rows, ended_by: str
) -> None:
    sending = make_inbox(worker=False, stop_grace="1s")
    sending.source("stripe", secrets=["whsec_test"])
    started: set[str] = set()
    ended: dict[str, float] = {}

    async def hang(name: str) -> None:
        started.add(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended[name] = time.monotonic()

    @sending.effect(retry=Retry(attempts=1))
    async def send(effect: Effect, number: int) -> None:
        await hang("effect")

    @sending.on("stripe", "*", retry=Retry(attempts=1))
    async def paid(event: Event) -> None:
        await hang("handler")

    await sending.start()
    await record(sending, "evt_1")
    await claim(sending, "evt_2")
    sending._runtime.start_worker()
    await eventually(lambda: started == {"effect", "handler"})
    server = make_server(sending)
    serving = asyncio.create_task(server.serve(sockets=[listen("127.0.0.1", 0)]))
    await eventually(lambda: server.started)
    began = time.monotonic()
    if ended_by == "server":
        server.should_exit = True
        await serving
        assert sending._runtime.worker is None and sending._runtime.relay is None
    await sending.stop()
    assert min(ended.values()) - began > 0.9
    assert abs(ended["effect"] - ended["handler"]) < 0.8, "both must have their grace period at the same time"
    server.should_exit = True
    await serving
    assert rows(EFFECTS) == [("send:evt_1", "waiting", 0, None)]
    states = rows("SELECT event_id, status, attempts FROM webhook_receipts ORDER BY id")
    assert states == [("evt_1", "processed", 1), ("evt_2", "received", 0)]
