"""The steps of the relay one by one: what it leases, releases, rescues and reports."""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from oncehook import Effect, Inbox, Retry, StoreUnavailable
from oncehook.config.keyring import KeyMissing, KeyWrong
from oncehook.effects import relay
from oncehook.effects.effect import EffectRegistry
from oncehook.effects.relay import Relay
from oncehook.model.effect import EffectState, LeasedEffect, SettledEffect
from oncehook.model.retry import Fail, Postpone
from oncehook.observability import signals
from oncehook.store.rows import EffectTarget
from tests.support.effects import record
from tests.support.events import Rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

Emitted = list[tuple[str, dict[str, Any]]]
STATES = "SELECT key, status, attempts FROM webhook_effects ORDER BY key"


def make_relay(inbox: Inbox, **changes: Any) -> Relay:
    return Relay(inbox._runtime.store, inbox._runtime.effects, **changes)


def register(inbox: Inbox, error: Exception | None = None) -> list[str]:
    """Register the effect `send`, with a timeout of 20 s. Returns the keys of its calls."""
    calls: list[str] = []

    async def send(effect: Effect, number: int) -> None:
        calls.append(effect.key)
        if error is not None:
            raise error

    inbox.effect(name="send", timeout="20s", retry=Retry(attempts=3, first=1, most=1))(send)
    return calls


async def expire(inbox: Inbox, rows: Rows, count: int) -> None:
    """Lease effects as a process that dies."""
    leased = await inbox._runtime.store.effects.lease(count, "gone", [EffectTarget("function", "send", 30.0)])
    assert len(leased) == count
    rows("UPDATE webhook_effects SET lease_until = '2020-01-01T00:00:00.000000Z' RETURNING id")


async def no_answer(*_: object, **__: object) -> Any:
    raise StoreUnavailable("no answer")


def make_leased(**changes: Any) -> LeasedEffect:
    facts: dict[str, Any] = {"id": 1, "lease": 1, "attempt": 1, "scope": "stripe", "key": "k", "kind": "function"}
    facts |= {"target": "send", "args": None, "source": "stripe", "receipt": 7, "replays": 0}
    return LeasedEffect(**facts | changes)


async def test_a_lease_lasts_fifteen_seconds_longer_than_the_timeout_of_its_effect(sending: Inbox) -> None:
    register(sending)
    made = make_relay(sending)
    assert EffectTarget("function", "send", 35.0) in made._targets()
    assert (made.name, made.concurrency) == (f"{socket.gethostname()}:{os.getpid()}", 16)
    assert (made.poll, made.rescue_interval) == (1.0, 10.0)
    assert make_relay(sending, rescue_interval=0.5).rescue_interval == 0.5


async def test_drain_runs_at_most_the_given_number(sending: Inbox, rows: Rows) -> None:
    calls = register(sending)
    await record(sending, "evt_1", "evt_2", "evt_3")
    made = make_relay(sending, concurrency=1)
    assert len(await made.drain(2)) == 2 == len(calls)
    assert len(await made.drain()) == 1
    assert sorted(calls) == ["send:evt_1", "send:evt_2", "send:evt_3"]


async def test_drain_also_runs_effects_whose_process_died(sending: Inbox, rows: Rows) -> None:
    calls = register(sending)
    await record(sending, "evt_1")
    await expire(sending, rows, 1)
    made = make_relay(sending)
    assert await made.rescue() == 1
    rows("UPDATE webhook_effects SET next_attempt_at = NULL RETURNING id")
    assert len(await made.drain()) == 1
    assert (calls, rows(STATES)) == (["send:evt_1"], [("send:evt_1", "done", 2)])


async def test_lease_fills_the_free_slots_only(sending: Inbox, rows: Rows) -> None:
    gate, running = asyncio.Event(), []

    @sending.effect
    async def send(effect: Effect, number: int) -> None:
        running.append(effect.key)
        await gate.wait()

    await record(sending, "evt_1", "evt_2", "evt_3")
    made = make_relay(sending, concurrency=2)
    assert (await made._lease(), await made._lease()) == (2, 0)
    await eventually(lambda: len(running) == 2, "both slots run")
    made._wakeup.clear()
    gate.set()
    await eventually(lambda: not made._running, "both slots are free")
    assert made._wakeup.is_set(), "a free slot looks for effects"
    assert await made._lease() == 1
    await made.stop()
    assert rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'") == [(3,)]


async def test_relay_without_functions_leases_nothing(sending: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending._runtime.store.effects, "lease", no_answer)
    made = make_relay(sending)
    made.effects = EffectRegistry()
    with monkeypatch.context() as patched:
        patched.setattr(signals, "emit", None)  # it would report that the database does not answer
        assert await made._lease() == 0


async def test_unavailable_database_is_logged_and_leases_nothing(
    sending: Inbox, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(sending)
    monkeypatch.setattr(sending._runtime.store.effects, "lease", no_answer)
    assert await make_relay(sending)._lease() == 0
    assert emitted == [("relay_database_unavailable", {"detail": "no answer"})]


@pytest.mark.parametrize(("attempt", "status"), [(1, "waiting"), (2, "retrying")])
async def test_postponed_effect_gets_the_status_back_that_it_had(
    sending: Inbox, rows: Rows, attempt: int, status: str, emitted: Emitted
) -> None:
    register(sending, Postpone("no free thread", after=6.0))
    await record(sending, "evt_1")
    if attempt == 2:
        rows("UPDATE webhook_effects SET status = 'retrying', attempts = 1 RETURNING id")
    made = make_relay(sending)
    (leased,) = await sending._runtime.store.effects.lease(1, "test", made._targets())
    assert leased.attempt == attempt
    await made._run(leased)
    assert rows(STATES) == [("send:evt_1", status, attempt - 1)]
    assert 5 < made._wakeups.seconds_left(100.0) < 6.1
    assert emitted == [], "no attempt is recorded"


async def test_attempt_whose_result_is_unknown_is_not_recorded(sending: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    register(sending)
    await record(sending, "evt_1")
    made, recorded = make_relay(sending), []
    (leased,) = await sending._runtime.store.effects.lease(1, "test", made._targets())

    async def unknown(settled: SettledEffect) -> None:
        return None

    monkeypatch.setattr(signals, "record_effect_attempt", lambda *facts: recorded.append(facts))
    monkeypatch.setattr(made.settler, "settle", unknown)
    await made._run(leased)
    assert recorded == []
    monkeypatch.undo()
    monkeypatch.setattr(signals, "record_effect_attempt", lambda *facts: recorded.append(facts))
    await made._run(leased)
    assert [(facts[0].id, facts[1].status, facts[2]) for facts in recorded] == [(leased.id, EffectState.DONE, True)]


async def test_rescue_reads_every_page_and_counts_what_it_settled(
    sending: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(sending)
    await record(sending, *(f"evt_{n}" for n in range(5)))
    await expire(sending, rows, 5)
    pages: list[tuple[int, int]] = []
    logged: list[int] = []
    expired, settle = sending._runtime.store.effects.expired, sending._runtime.store.effects.settle

    async def note_page(limit: int, after: int) -> Any:
        pages.append((limit, after))
        return await expired(2, after)

    async def lose_one(settled: Sequence[SettledEffect]) -> set[int]:
        assert all(result.crashed for result in settled)
        return await settle([result for result in settled if result.id != first])

    ids = [id for (id,) in rows("SELECT id FROM webhook_effects ORDER BY id")]
    first = ids[0]
    monkeypatch.setattr(sending._runtime.store.effects, "expired", note_page)
    monkeypatch.setattr(sending._runtime.store.effects, "settle", lose_one)
    monkeypatch.setattr(signals, "record_expired_effect_lease", lambda row, settled: logged.append(row.id))
    assert await make_relay(sending).rescue() == 4
    assert pages == [(200, after) for after in (0, ids[1], ids[3], ids[4])]
    assert logged == ids[1:]
    assert rows("SELECT DISTINCT status FROM webhook_effects ORDER BY status") == [("performing",), ("retrying",)]


async def test_expired_effect_without_attempts_left_has_failed(sending: Inbox, rows: Rows) -> None:
    register(sending)
    await record(sending, "evt_1")
    rows("UPDATE webhook_effects SET attempts = 2 RETURNING id")
    await expire(sending, rows, 1)
    assert await make_relay(sending).rescue() == 1
    assert rows(STATES) == [("send:evt_1", "failed", 3)]


async def test_effect_whose_process_died_wakes_the_relay_and_an_unknown_one_is_reported_once(
    sending: Inbox, rows: Rows, emitted: Emitted
) -> None:
    calls = register(sending)
    await record(sending, "evt_1", "evt_2")
    made = make_relay(sending)
    await made._check_waiting()
    assert (made._has_crashed, made._wakeup.is_set()) == (False, False)
    await expire(sending, rows, 1)
    await made.rescue()
    rows("UPDATE webhook_effects SET next_attempt_at = NULL RETURNING id")
    emitted.clear()
    await made._check_waiting()
    assert (made._has_crashed, made._wakeup.is_set(), emitted) == (True, True, [])
    assert await made._lease() == 1, "it runs in isolation"
    assert await made._lease() == 0, "nothing else starts while it runs"
    await eventually(lambda: not made._running, "the quarantined effect ended")
    assert len(calls) == 1 and made._quarantine.item is None
    assert await made._lease_crashed(made._targets()) == [] and made._has_crashed is False
    rows("UPDATE webhook_effects SET target = 'unknown', status = 'waiting' RETURNING id")
    for _ in range(2):
        await made._check_waiting()
    unregistered = [fields for line, fields in emitted if line == "effect_unregistered"]
    assert unregistered == [{"kind": "function", "target": "unknown", "effects": 2}]


async def test_stop_cancels_the_rescue_and_closes_the_task_queues(
    sending: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Queue:
        async def close(self) -> None:
            closed.append("queue")

    register(sending)
    monkeypatch.setitem(sending._runtime.effects.task_queues, "tasks", Queue())
    made = make_relay(sending)
    made.start()
    await made.stop(1.0)
    assert made._feeding is not None and made._rescuing is not None
    assert made._feeding.done() and made._rescuing.cancelled()
    assert closed == ["queue"]


async def test_rescue_goes_on_after_the_database_or_a_bug_failed_it(
    sending: Inbox, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [LookupError("a bug"), StoreUnavailable("no answer")]
    made = make_relay(sending, rescue_interval=0.0)
    rescued = asyncio.Event()

    async def rescue() -> int:
        if errors:
            raise errors.pop()
        rescued.set()
        return 0

    monkeypatch.setattr(made, "rescue", rescue)
    task = asyncio.create_task(made._keep_rescuing())
    await asyncio.wait_for(rescued.wait(), 20)
    task.cancel()
    lines = [(line, fields.get("detail", fields.get("loop"))) for line, fields in emitted]
    assert lines == [("relay_database_unavailable", "no answer"), ("background_failed", "relay rescue")]


def test_effect_without_arguments_fails_or_waits_for_its_key(emitted: Emitted) -> None:
    erased = relay._missing_args(make_leased())
    assert isinstance(erased, Fail) and "were erased" in str(erased)
    wrong = relay._missing_args(make_leased(key_error=KeyWrong("it was changed", "k1")))
    assert isinstance(wrong, Fail) and "it was changed" in str(wrong)
    assert emitted == []
    missing = relay._missing_args(make_leased(key_error=KeyMissing("no key", "k1")))
    assert isinstance(missing, Postpone) and missing.after == 30.0
    assert emitted == [("key_missing", {"source": "stripe", "receipt": 7, "key": "k1"})]
