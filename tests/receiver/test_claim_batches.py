"""Which waiting claims share a batch, which have waited too long, and when the intake is full: without a database."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import IntakeFull, KeyTaken, StoreUnavailable
from oncehook.receiver.claim import Claimer, ClaimGroup, _result
from tests.support.clocks import ManualClock
from tests.support.events import make_claim
from tests.support.waiting import hang, next_turn

pytestmark = pytest.mark.anyio


class HangingStore:
    """A store whose commits never end, so that every claim waits."""

    parallel = 1

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        await hang()
        return []


def make_claimer(**changes: Any) -> Claimer:
    limits: dict[str, Any] = {"limit": 10, "limit_bytes": 100, "timeout": 10.0, "clock": ManualClock(100.0)}
    store: Any = HangingStore()
    return Claimer(store, observe=lambda seen: None, **limits | changes)


def claims_of(*sizes: int) -> list[Claim]:
    return [make_claim(f"evt_{number}", body=bytes(size)) for number, size in enumerate(sizes)]


def group_of(*sizes: int, at: float = 100.0) -> ClaimGroup:
    return ClaimGroup(claims_of(*sizes), asyncio.get_running_loop().create_future(), at)


async def start(claimer: Claimer, *sizes: int) -> "asyncio.Task[list[Claimed]]":
    task = asyncio.create_task(claimer.claim(claims_of(*sizes)))
    await next_turn()
    await next_turn()  # its commit has begun
    return task


async def test_group_has_the_bytes_of_all_its_bodies() -> None:
    assert [group_of(*sizes).bytes for sizes in ((7,), (7, 5), (7, 5, 3))] == [7, 12, 15]


async def test_batch_has_at_most_500_events_in_whole_deliveries() -> None:
    claimer = make_claimer()
    claimer._waiting.extend(
        [group_of(*[1] * 250), group_of(*[1] * 250), group_of(1), group_of(*[1] * 600), group_of(1)]
    )
    assert [len(claimer._next_batch()) for _ in range(4)] == [2, 1, 1, 1]


async def test_batch_has_at_most_8_megabytes() -> None:
    claimer, half = make_claimer(), 4 * 2**20
    claimer._waiting.extend([group_of(half), group_of(half), group_of(1), group_of(half), group_of(half)])
    assert [[group.bytes for group in claimer._next_batch()] for _ in range(3)] == [[half] * 2, [1, half], [half]]


async def test_claims_wait_up_to_a_number_of_events() -> None:
    claimer = make_claimer(limit=3)
    waiting = [await start(claimer, 1), await start(claimer, 1, 1)]
    with pytest.raises(IntakeFull) as full:
        await claimer.claim(claims_of(1))
    assert full.value.retry_after == 2
    assert not any(task.done() for task in waiting)
    await stop(claimer, waiting)


async def test_claims_wait_up_to_a_number_of_bytes() -> None:
    claimer = make_claimer()
    waiting = [await start(claimer, 60), await start(claimer, 20, 20)]
    with pytest.raises(IntakeFull):
        await claimer.claim(claims_of(1))
    await stop(claimer, waiting)


async def test_delivery_larger_than_the_intake_is_accepted_if_nothing_else_waits() -> None:
    for sizes in ((1,) * 11, (101,)):
        claimer = make_claimer()
        waiting = [await start(claimer, *sizes)]
        assert not waiting[0].done()
        with pytest.raises(IntakeFull):
            await claimer.claim(claims_of(1))
        await stop(claimer, waiting)


async def stop(claimer: Claimer, waiting: "list[asyncio.Task[list[Claimed]]]") -> None:
    """Cancel the commit: every claim in it fails, and the room that it took is free again."""
    (commit,) = claimer._tasks
    commit.cancel()
    await asyncio.wait([commit, waiting[0]])
    assert isinstance(waiting[0].exception(), StoreUnavailable)
    assert claimer._flushing == 0 and not claimer._tasks
    claims = sum(len(group.claims) for group in claimer._waiting)
    assert (claimer._events, claimer._bytes) == (claims, sum(group.bytes for group in claimer._waiting))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_only_groups_that_waited_longer_than_the_timeout_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    claimer, committed = make_claimer(), []

    async def commit_batch(groups: list[ClaimGroup]) -> None:
        committed.append(groups)

    monkeypatch.setattr(claimer, "_commit_batch", commit_batch)
    late, gone, exact, new = (group_of(1, at=at) for at in (89.0, 89.5, 90.0, 100.0))
    gone.waiter.set_result([])  # its delivery was cancelled
    await claimer._commit([late, gone, exact, new])
    assert committed == [[exact, new]]
    assert isinstance(late.waiter.exception(), StoreUnavailable)  # type: ignore[union-attr]
    assert not exact.waiter.done()
    await claimer._commit([last := group_of(1, at=89.0)])
    assert len(committed) == 1, "nothing is committed if all waited too long"
    assert isinstance(last.waiter.exception(), StoreUnavailable)  # type: ignore[union-attr]


def test_later_claim_of_an_id_in_a_batch_is_a_duplicate_with_its_own_fingerprint() -> None:
    first, same, other = make_claim("evt_1"), make_claim("evt_1"), make_claim("evt_1", fingerprint=b"other")
    outcome = Claimed(7, True, first.status, first.fingerprint)
    assert _result(first, first, outcome) is outcome
    for claim, same_body in ((same, True), (other, False)):
        assert _result(claim, first, outcome) == Claimed(7, False, first.status, first.fingerprint, same_body)


# -- what the store is asked, and what it answers -------------------------------------------------------------------


class AnsweringStore:
    """Records the event ids of each call, and raises the errors that it is given, one for each call."""

    parallel = 1

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls: list[list[str]] = []

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        self.calls.append([claim.event_id for claim in claims])
        if self.errors:
            raise self.errors.pop(0)
        return [Claimed(number, True, claim.status, claim.fingerprint) for number, claim in enumerate(claims, 1)]

    async def insert_or_find(self, claim: Claim) -> Claimed:
        return (await self.insert([claim]))[0]


def make_answering(*errors: Exception) -> tuple[Claimer, AnsweringStore, list[int]]:
    store: Any = AnsweringStore(*errors)
    seen: list[int] = []
    claimer = Claimer(
        store,
        observe=lambda pairs: seen.append(len(pairs)),
        limit=10,
        limit_bytes=1000,
        timeout=10,
        clock=ManualClock(),
    )
    return claimer, store, seen


async def test_store_gets_each_event_id_of_a_batch_once_and_all_at_once_if_they_differ() -> None:
    claimer, store, seen = make_answering()
    twice = [make_claim("evt_1"), make_claim("evt_2"), make_claim("evt_1")]
    assert [result.fresh for result in await claimer.claim(twice)] == [True, True, False]
    await claimer.claim([make_claim("evt_3"), make_claim("evt_4")])
    await claimer.drain()
    assert store.calls == [["evt_1", "evt_2"], ["evt_3", "evt_4"]]
    assert seen == [3, 2]


async def test_sender_gets_the_error_of_the_store_and_the_next_claim_works() -> None:
    claimer, store, seen = make_answering(StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable, match=r"^no answer$"):
        await claimer.claim([make_claim("evt_1")])
    assert (await claimer.claim([make_claim("evt_1")]))[0].fresh
    assert (store.calls, seen) == ([["evt_1"], ["evt_1"]], [1])


async def test_sender_gets_the_error_of_a_claim_whose_key_is_taken() -> None:
    claimer, store, seen = make_answering(KeyTaken("it is taken"), StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable, match=r"^no answer$"):
        await claimer.claim([make_claim("evt_1"), make_claim("evt_2")])
    await claimer.drain()
    assert (store.calls, seen) == ([["evt_1", "evt_2"], ["evt_1"]], [])


async def test_claims_whose_key_is_taken_are_recorded_one_by_one() -> None:
    claimer, store, seen = make_answering(KeyTaken("it is taken"))
    results = await claimer.claim([make_claim("evt_1"), make_claim("evt_2")])
    await claimer.drain()
    assert [result.fresh for result in results] == [True, True]
    assert (store.calls, seen) == ([["evt_1", "evt_2"], ["evt_1"], ["evt_2"]], [2])


async def test_drain_ends_although_a_commit_was_cancelled() -> None:
    claimer = make_claimer()
    waiting = await start(claimer, 1)
    draining = asyncio.create_task(claimer.drain())
    await next_turn()
    (commit,) = claimer._tasks
    commit.cancel()
    await draining
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], StoreUnavailable)
