"""Consumers as shown to people, unknown names, and a removal while receivers still write receipts."""

import pytest

import oncehook.operations.consumers as consumers_module
from oncehook import ConfigurationError
from oncehook.model.claim import ConsumerClaim
from oncehook.operations.consumers import check_consumer, read_consumers, remove_consumer
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_consumers_are_those_that_are_registered_live_paused_or_have_work(store: Store, rows: Rows) -> None:
    await store.consumers.register({("ledger", "stripe"): ["invoice.*"], ("ledger", "github"): ["push"]}, {})
    await store.pauses.pause("", "ann", consumer="search")
    await store.pauses.pause("stripe", "ann")
    await claim(store, "evt_1", copies=(ConsumerClaim("removed"),))
    main, *named = await read_consumers(store)
    assert (main.name, main.waiting) == ("main", 1)
    assert [state.name for state in named] == ["ledger", "removed", "search"]
    assert named[0].patterns == {"stripe": ["invoice.*"], "github": ["push"]}
    assert named[1].waiting == 1 and named[1].oldest_seconds >= 0
    assert named[2].paused is not None and named[2].paused.actor == "ann" and main.paused is None


async def test_unknown_consumer_is_an_error_with_the_nearest_name(store: Store) -> None:
    await store.consumers.register({("ledger", "stripe"): ["*"]}, {})
    await check_consumer(store, "ledger")
    await check_consumer(store, "new", known=["new"])
    with pytest.raises(ConfigurationError, match=r"there is no consumer legder: did you mean ledger\?"):
        await check_consumer(store, "legder")
    with pytest.raises(ConfigurationError, match="there is no consumer xyz: the consumers are ledger, main"):
        await check_consumer(store, "xyz")


async def test_receipts_that_receivers_write_during_a_removal_are_ended_too(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "KNOWN_AFTER", 0.0)
    monkeypatch.setattr(consumers_module, "BATCH", 2)
    await store.consumers.register({("ledger", "stripe"): ["*"]}, {})
    copies = (ConsumerClaim("ledger"), ConsumerClaim("search"))
    await claim(store, *(f"evt_{n}" for n in range(5)), copies=copies)
    progress: list[int] = []
    count_open = store.consumers.open_receipts

    async def receive_late(name: str, most: int) -> dict[str, int]:
        counts = await count_open(name, most)
        await claim(store, f"evt_late_{len(progress)}", copies=copies if len(progress) < 5 else ())
        return counts

    monkeypatch.setattr(store.consumers, "open_receipts", receive_late)
    assert await remove_consumer(store, "ledger", actor="ann", progress=progress.append) == 6
    assert progress[:4] == [2, 4, 5, 5]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE consumer = 'ledger' AND status <> 'ignored'") == [(0,)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE consumer = 'search' AND status = 'ignored'") == [(0,)]


async def test_main_cannot_be_removed(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="the consumer main cannot be removed"):
        await remove_consumer(store, "main", actor="ann")
