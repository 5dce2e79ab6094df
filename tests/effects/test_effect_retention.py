"""How long the keys and arguments of effects are kept."""

from collections.abc import Callable

import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.effects import relay
from oncehook.operations.prune import prune
from tests.support.effects import record
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


async def test_effect_keys_must_be_kept_as_long_as_receipts_that_could_request_them_again(
    make_inbox: Callable[..., Inbox],
) -> None:
    short = make_inbox(effect_retention="10d")
    short.source("stripe", secrets=["whsec_test"])
    with pytest.raises(ConfigurationError, match=r"effect_retention is 10d: .* the minimum is 30d"):
        await short.start()
    enough = make_inbox(effect_retention="30d")
    enough.source("stripe", secrets=["whsec_test"])
    async with enough.lifespan():
        pass


async def test_pruning_deletes_old_keys_and_arguments_of_completed_effects(sending: Inbox, rows: Rows) -> None:
    sending.effect(name="send")(lambda effect, number: None)
    await record(sending, *(f"evt_{n}" for n in range(6)))
    await relay.Relay(sending._runtime.store, sending._runtime.effects).drain()
    long_ago = "'2026-01-01T00:00:00.000000Z'"
    old = "('send:evt_1', 'send:evt_2', 'send:evt_3')"
    rows(f"UPDATE webhook_effects SET done_at = {long_ago}, created_at = {long_ago} WHERE key IN {old}")
    rows("UPDATE webhook_effects SET status = 'failed' WHERE key = 'send:evt_1'")
    rows("UPDATE webhook_effects SET status = 'waiting' WHERE key = 'send:evt_2'")
    pruned = await prune(sending._runtime.store, sending._runtime.horizons.values())
    assert pruned is not None and pruned.effects == 0
    assert rows("SELECT key FROM webhook_effects WHERE args IS NULL") == [("send:evt_3",)]
    pruned = await prune(sending._runtime.store, sending._runtime.horizons.values(), effects=90 * 86400.0)
    assert pruned is not None and pruned.effects == 1
    keys = [row[0] for row in rows("SELECT key FROM webhook_effects ORDER BY key")]
    assert keys == [f"send:evt_{n}" for n in (0, 1, 2, 4, 5)]


async def test_pruning_of_many_effects_takes_several_batches(
    sending: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.operations.prune.BATCH", 2)
    sending.effect(name="send")(lambda effect, number: None)
    await record(sending, *(f"evt_{n}" for n in range(5)))
    await relay.Relay(sending._runtime.store, sending._runtime.effects).drain()
    long_ago = "'2026-01-01T00:00:00.000000Z'"
    rows(f"UPDATE webhook_effects SET done_at = {long_ago}, created_at = {long_ago}")
    await prune(sending._runtime.store, sending._runtime.horizons.values())
    assert rows("SELECT count(*) FROM webhook_effects WHERE args IS NULL") == [(5,)]
    pruned = await prune(sending._runtime.store, sending._runtime.horizons.values(), effects=90 * 86400.0)
    assert pruned is not None and pruned.effects == 5
    assert rows("SELECT count(*) FROM webhook_effects") == [(0,)]
