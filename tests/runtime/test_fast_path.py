"""The fast path in a running inbox: duplicates cause no claims, and nothing else changes."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.brokers import redis_cache
from oncehook.config.settings import Horizon, Settings
from oncehook.operations.prune import prune
from oncehook.runtime.parts import has_fast_path
from oncehook.testing import deliver, drain
from tests.support.ages import set_age
from tests.support.events import STRIPE_SECRET, Rows
from tests.support.fast_path import fast_inbox, total_hits
from tests.support.redis_server import private_redis
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

NOTED = "SELECT same_body, count(*) FROM webhook_deliveries GROUP BY same_body ORDER BY same_body"


@pytest.mark.sampled(1)
async def test_ten_thousand_duplicates_cause_no_claim(database: str) -> None:
    rounds = 20 if database.startswith("postgresql") else 2
    async with fast_inbox(database) as fast:
        first = await fast.send("evt_1")
        claims = fast.claims.count
        for _ in range(rounds):
            answers = await asyncio.gather(*(fast.send("evt_1") for _ in range(500)))
            assert {answer.outcome for answer in answers} == {(200, "duplicate")}
            assert {answer.receipt for answer in answers} == {first.receipt}
        assert fast.claims.count == claims
        assert fast.hits == 500 * rounds


async def test_duplicate_is_noted_and_flagged_as_without_the_fast_path(database: str, rows: Rows) -> None:
    noted = []
    for limit in (2**20, 0):
        async with fast_inbox(database, duplicate_cache=limit) as fast:
            await fast.send("evt_1")
            await fast.send("evt_1")
            await fast.send("evt_1", livemode=True)
            await fast.inbox._runtime.reception.duplicates.drain()
            noted.append(rows(NOTED))
        rows("DELETE FROM webhook_deliveries RETURNING id")
        rows("DELETE FROM webhook_receipts RETURNING id")
    assert noted[0] == noted[1]
    assert [int(count) for _, count in noted[0]] == [1, 1]


async def test_event_that_was_pruned_is_accepted_again(database: str) -> None:
    async with fast_inbox(database) as fast:
        await fast.send("evt_1")
        set_age(database, "evt_1", 40, "processed")
        assert await prune(fast.inbox._runtime.store, [Horizon("stripe", 30 * 86400.0, 30 * 86400.0)])
        assert (await fast.send("evt_1")).outcome == (202, "accepted")
        assert (await fast.send("evt_1")).outcome == (200, "duplicate")
        assert fast.hits == 1


async def test_inline_event_is_answered_from_memory_only_when_it_is_finished(make_inbox: Callable[..., Inbox]) -> None:
    inbox, calls, hits = make_inbox(worker=True), list[int](), total_hits()
    inbox.source("stripe", secrets=[STRIPE_SECRET], mode="inline")

    @inbox.on("stripe", "*")
    async def handle(event: object) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")

    async with inbox.lifespan():
        payload = {"id": "evt_1", "object": "event", "type": "invoice.paid"}
        answers = [(await deliver(inbox, "stripe", payload)).status for _ in range(5)]
        assert answers == [500, 500, 200, 200, 200]
        assert total_hits() - hits == 1, "the first duplicate of the finished event is claimed, the second is not"
    assert len(calls) == 3


async def test_fast_path_is_off_where_it_could_not_be_trusted_or_is_not_wanted() -> None:
    assert has_fast_path(Settings())
    assert not has_fast_path(Settings(unsafe_durability=True))
    assert not has_fast_path(Settings(fast_paths=False, redis="redis://localhost"))
    assert not has_fast_path(Settings(duplicate_cache=0))
    assert has_fast_path(Settings(duplicate_cache=0, redis="redis://localhost"))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_process_answers_a_duplicate_that_another_process_claimed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "BUDGET", 0.5)  # a busy machine must not look as a slow Redis
    with private_redis() as server:
        async with fast_inbox(database, redis=server.url) as one, fast_inbox(database, redis=server.url) as other:
            first = await one.send("evt_1")
            await eventually(server.values, "the receipt is shared")
            again = await other.send("evt_1", livemode=True)
            assert (again.outcome, again.receipt) == ((200, "duplicate"), first.receipt)
            assert other.claims.count == 0
            server.flush()
            assert (await other.send("evt_1")).outcome == (200, "duplicate"), "the process remembers it itself"
            assert other.claims.count == 0


async def test_inbox_runs_and_drains_with_the_fast_path(make_inbox: Callable[..., Inbox]) -> None:
    inbox, seen = make_inbox(), list[str]()
    inbox.source("stripe", secrets=[STRIPE_SECRET])

    @inbox.on("stripe", "*")
    async def handle(event: object) -> None:
        seen.append(event.id)  # type: ignore[attr-defined]

    for _ in range(2):  # it can start again
        async with inbox.lifespan():
            for _ in range(3):
                await deliver(inbox, "stripe", {"id": "evt_1", "object": "event", "type": "invoice.paid"})
            await drain(inbox)
    assert seen == ["evt_1"]
