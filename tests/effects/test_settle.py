"""The relay settles effects in batches, learns which leases were lost, and a failed write blocks no slot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Effect, Event, Inbox, StoreUnavailable
from oncehook.effects.settle import EffectSettler
from oncehook.model.effect import EffectState, SettledEffect
from oncehook.store.rows import EffectTarget
from tests.support.effects import record
from tests.support.events import Rows
from tests.support.waiting import eventually, next_turn
from tests.support.work import FailsAtFirst, claim

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with two slots."""
    inbox = make_inbox(worker=False, lease="2s", concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


async def test_an_unexpected_error_in_settle_frees_the_slots_of_the_relay(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox._runtime.store.effects, "settle", FailsAtFirst(inbox._runtime.store.effects.settle))

    @inbox.effect
    def send(effect: Effect) -> None: ...

    @inbox.on("stripe", "*")
    async def request(event: Event) -> None:
        await event.effect(event.id, send)

    await claim(inbox, *"abcde")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'")[0][0] >= 1)
    assert inbox._runtime.relay is not None
    relay = inbox._runtime.relay
    await eventually(lambda: not relay._running)


async def test_settle_reports_for_each_effect_whether_its_lease_was_lost(sending: Inbox, rows: Rows) -> None:
    store = sending._runtime.store.effects
    await record(sending, "evt_1", "evt_2", "evt_3")
    leased = await store.lease(10, "the test", [EffectTarget("function", "send", 30.0)])
    lost = min(leased, key=lambda effect: effect.key)
    rows(f"UPDATE webhook_effects SET lease = lease + 1 WHERE id = {lost.id}")  # another relay has it now
    settler = EffectSettler(store)
    results = [SettledEffect(effect.id, effect.lease, EffectState.DONE) for effect in leased]
    landed = await asyncio.gather(*map(settler.settle, results))
    assert {effect.key: result for effect, result in zip(leased, landed, strict=True)} == {
        "send:evt_1": False,
        "send:evt_2": True,
        "send:evt_3": True,
    }
    assert rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'") == [(2,)]


async def test_cancelled_write_leaves_the_result_of_every_waiting_effect_unknown(
    sending: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sending._runtime.store.effects
    started = asyncio.Event()

    async def hang(settled: list[SettledEffect]) -> set[int]:
        started.set()
        await asyncio.Event().wait()
        return set()

    monkeypatch.setattr(store, "settle", hang)
    settler = EffectSettler(store)
    waiting = [asyncio.create_task(settler.settle(SettledEffect(1, 1, EffectState.DONE)))]
    await started.wait()
    waiting.append(asyncio.create_task(settler.settle(SettledEffect(2, 1, EffectState.DONE))))
    await next_turn()
    assert settler._writing is not None
    settler._writing.cancel()
    assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [None, None]


async def test_a_write_is_tried_five_times_with_growing_delays(
    sending: Inbox, monkeypatch: pytest.MonkeyPatch, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    store = sending._runtime.store.effects
    tries: list[int] = []
    delays: list[float] = []

    async def fail(settled: list[SettledEffect]) -> set[int]:
        tries.append(len(settled))
        raise StoreUnavailable("no answer")

    async def note_delay(seconds: float) -> None:
        delays.append(round(seconds, 6))

    settler = EffectSettler(store)
    with monkeypatch.context() as patched:
        patched.setattr(store, "settle", fail)
        patched.setattr("oncehook.effects.settle.asyncio.sleep", note_delay)
        assert await settler.settle(SettledEffect(1, 1, EffectState.DONE)) is None
    assert (tries, delays) == ([1] * 5, [0.2, 0.4, 0.8, 1.6])
    assert emitted == [("effect_settle_failed", {"effects": 1, "detail": "no answer"})]
    assert await settler.settle(SettledEffect(1, 1, EffectState.DONE)) is False, "the next write works"


async def test_an_unexpected_error_is_logged_once_and_not_retried(
    sending: Inbox, monkeypatch: pytest.MonkeyPatch, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    store = sending._runtime.store.effects
    tries: list[int] = []

    async def fail(settled: list[SettledEffect]) -> set[int]:
        tries.append(len(settled))
        raise LookupError("a bug")

    monkeypatch.setattr(store, "settle", fail)
    settler = EffectSettler(store)
    assert await settler.settle(SettledEffect(1, 1, EffectState.DONE)) is None
    assert tries == [1]
    assert [line for line, _ in emitted] == ["background_failed"]
