"""The relay settles an effect again when the reply of the database was lost."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Inbox, StoreUnavailable
from oncehook.effects import relay
from tests.support.effects import record
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import effects_are

pytestmark = pytest.mark.anyio


async def test_a_settle_whose_reply_was_lost_is_written_again(
    sending: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    calls: list[str] = []
    sending.effect(name="send")(lambda effect, number: calls.append(effect.key))
    await record(sending, "evt_1", "evt_2")
    native, failures = sending._runtime.store.effects.settle, 2

    async def lost(settled: Any) -> set[int]:
        nonlocal failures
        failures -= 1
        landed = await native(settled) if failures == 0 else set()
        if failures >= 0:
            raise StoreUnavailable("no answer")
        return await native(settled) | landed

    sending._runtime.store.effects.settle = lost  # type: ignore[method-assign]
    assert len(await relay.Relay(sending._runtime.store, sending._runtime.effects).drain()) == 2
    await eventually(effects_are(rows, "done", 2))
    assert sorted(calls) == ["send:evt_1", "send:evt_2"]
    assert [line for line in lines() if line["event"] == "effect_lease_lost"] == []
