"""A duplicate is answered from memory only if a query after its arrival confirms that the receipt exists."""

import asyncio
from collections.abc import Sequence

import pytest

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import StoreUnavailable
from oncehook.model.states import State
from oncehook.receiver.claim import ImmediateFuture
from oncehook.receiver.fast_path import step as module
from oncehook.receiver.fast_path.entries import RememberedReceipts
from oncehook.receiver.fast_path.step import FastPath
from oncehook.store.fast_path import FastPathState
from tests.support.clocks import ManualClock
from tests.support.events import make_claim
from tests.support.waiting import hang, next_turn

pytestmark = pytest.mark.anyio

STATE = FastPathState(b"secret", b"namespace", 0)
RESTORED = FastPathState(b"secret", b"another", 0)


class Database:
    """A claim step and a state that a test controls."""

    def __init__(self) -> None:
        self.claimed: list[str] = []
        self.known: dict[str, int] = {}
        self.now = STATE
        self.queries = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.claim_failure: Exception | None = None
        self.hangs = False
        self.renewals = 0

    async def renew(self) -> None:
        self.renewals += 1
        self.now = FastPathState(b"secret", b"renewed", 0)

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        if self.claim_failure is not None:
            failure, self.claim_failure = self.claim_failure, None
            raise failure
        return [self._claim(claim) for claim in claims]

    def _claim(self, claim: Claim) -> Claimed:
        self.claimed.append(claim.event_id)
        fresh = claim.event_id not in self.known
        receipt = self.known.setdefault(claim.event_id, len(self.known) + 1)
        return Claimed(receipt, fresh, State.RECEIVED if fresh else State.PROCESSED, claim.fingerprint)

    async def state(self) -> FastPathState:
        self.queries += 1
        await self.gate.wait()
        if self.hangs:
            await hang()
        if self.failure is not None:
            raise self.failure
        return self.now


class Fast:
    """The fast path around this database, with what it observed."""

    def __init__(self, *, ids_ascend: bool = False) -> None:
        self.database = Database()
        self.clock = ManualClock()
        self.observed: list[tuple[str, Claimed]] = []
        remembered = RememberedReceipts(2**20, STATE, self.clock)
        self.path = FastPath(
            self.database, self.database, remembered, observe=self._observe, ids_ascend=ids_ascend, clock=self.clock
        )

    def _observe(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        self.observed += [(claim.event_id, claimed) for claim, claimed in pairs]

    async def send(self, *event_ids: str) -> list[bool]:
        """Deliver these events together. Returns which of them were fresh."""
        results = await self.path.claim([make_claim(event_id) for event_id in event_ids])
        return [claimed.fresh for claimed in results]


async def test_duplicate_is_answered_without_a_claim_and_observed_once() -> None:
    fast = Fast()
    assert await fast.send("evt_1") == [True]
    assert await fast.send("evt_1") == [False]
    assert fast.database.claimed == ["evt_1"]
    assert [(event_id, claimed.receipt) for event_id, claimed in fast.observed] == [("evt_1", 1)]


async def test_duplicate_with_another_body_is_flagged() -> None:
    fast = Fast()
    await fast.send("evt_1")
    (claimed,) = await fast.path.claim([make_claim("evt_1", body=b"other")])
    assert (claimed.fresh, claimed.same_body) == (False, False)


async def test_event_whose_insert_failed_is_taken_when_it_is_delivered_again() -> None:
    fast = Fast()
    fast.database.claim_failure = StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        await fast.send("evt_1")
    assert await fast.send("evt_1") == [True]


async def test_duplicate_that_only_the_database_knew_is_remembered() -> None:
    fast = Fast()
    fast.database.known["evt_1"] = 1
    assert [await fast.send("evt_1"), await fast.send("evt_1")] == [[False], [False]]
    assert fast.database.claimed == ["evt_1"]


async def test_delivery_with_one_new_event_is_claimed_as_a_whole() -> None:
    fast = Fast()
    await fast.send("evt_1")
    assert await fast.send("evt_1", "evt_2") == [False, True]
    assert fast.database.claimed == ["evt_1", "evt_1", "evt_2"]


async def test_after_a_failover_or_a_restore_nothing_is_remembered() -> None:
    fast = Fast()
    await fast.send("evt_1")
    fast.database.now = RESTORED
    fast.database.known.clear()
    assert await fast.send("evt_1") == [True], "the row vanished, so the delivery is the first"
    assert await fast.send("evt_1") == [False]
    assert fast.database.claimed == ["evt_1", "evt_1"]


async def test_commit_before_a_failover_is_not_remembered_after_it() -> None:
    """The process is paused between the commit on the old server and the moment in which it remembers it."""
    fast = Fast()
    await fast.send("evt_1")
    paused, resume = asyncio.Event(), asyncio.Event()

    async def claim_slowly(claims: Sequence[Claim]) -> list[Claimed]:
        results = [fast.database._claim(claim) for claim in claims]
        paused.set()
        await resume.wait()
        return results

    fast.path.inner = type("Slow", (), {"claim": staticmethod(claim_slowly)})()
    committing = asyncio.create_task(fast.send("evt_2"))
    await paused.wait()
    fast.path.inner = fast.database
    fast.database.now = RESTORED
    fast.database.known.clear()
    assert await fast.send("evt_1") == [True], "which queries the state"
    resume.set()
    assert await committing == [True]
    assert await fast.send("evt_2") == [True], "the row of the old server must not be remembered"


async def test_deleted_receipt_is_not_answered_and_later_receipts_are() -> None:
    fast = Fast()
    for event_id in ("evt_1", "evt_2", "evt_3"):
        await fast.send(event_id)
    fast.database.now = FastPathState(b"secret", b"namespace", 2)
    fast.database.claimed.clear()
    for event_id in ("evt_1", "evt_2", "evt_3"):
        await fast.send(event_id)
    assert fast.database.claimed == ["evt_1", "evt_2"]


async def test_query_that_began_before_a_delivery_does_not_answer_it() -> None:
    fast = Fast()
    await fast.send("evt_1")
    fast.database.gate.clear()
    first = asyncio.create_task(fast.send("evt_1"))
    await next_turn()
    await next_turn()
    others = [asyncio.create_task(fast.send("evt_1")) for _ in range(50)]
    await next_turn()
    assert fast.database.queries == 1
    fast.database.gate.set()
    assert await asyncio.gather(first, *others) == [[False]] * 51
    assert fast.database.queries == 2, "all that arrived during a query share the next"
    assert fast.database.claimed == ["evt_1"]


async def test_duplicates_are_claimed_while_the_database_does_not_confirm() -> None:
    fast = Fast()
    await fast.send("evt_1")
    fast.database.failure = StoreUnavailable("down")
    assert await fast.send("evt_1") == [False]
    assert await fast.send("evt_1") == [False]
    assert (fast.database.queries, len(fast.database.claimed)) == (1, 3), "after a failure, it pauses"
    fast.clock.advance(module.PAUSE_SECONDS)
    fast.database.failure = None
    assert await fast.send("evt_1") == [False]
    assert len(fast.database.claimed) == 3


async def test_query_that_hangs_delays_a_delivery_by_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)
    fast = Fast()
    await fast.send("evt_1")
    fast.database.hangs = True
    assert await fast.send("evt_1") == [False]
    assert len(fast.database.claimed) == 2


async def test_delivery_without_a_task_is_answered() -> None:
    """The fast protocol of `oncehook serve` runs deliveries without a task."""
    fast = Fast()
    await fast.send("evt_1")
    answered: list[list[Claimed]] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def start() -> None:
        delivery = fast.path.claim([make_claim("evt_1")])
        waiter = delivery.send(None)
        assert isinstance(waiter, ImmediateFuture)

        def resume(_: object) -> None:
            try:
                delivery.send(None)
            except StopIteration as end:
                answered.append(end.value)
                done.set()

        waiter.add_done_callback(resume)

    loop.call_soon(start)
    await asyncio.wait_for(done.wait(), 10)
    assert [claimed.fresh for claimed in answered[0]] == [False]
    await fast.path.drain()


async def test_receipt_with_a_greater_number_than_the_database_has_drawn_is_claimed() -> None:
    fast = Fast()
    await fast.send("evt_1", "evt_2")
    fast.database.known.clear()  # a backup from before was restored under the same name
    fast.database.now = FastPathState(b"secret", b"namespace", 0, receipts=0)
    assert await fast.send("evt_2") == [True], "the event is in no database, so it is claimed"
    assert fast.database.renewals == 1, "other processes have to forget, too"
    fast.database.now = FastPathState(b"secret", b"renewed", 0, receipts=9)
    assert await fast.send("evt_1") == [True]


async def test_number_that_is_drawn_again_shows_that_the_database_was_set_back() -> None:
    fast = Fast(ids_ascend=True)
    await fast.send("evt_1", "evt_2")
    fast.database.known.clear()
    assert await fast.send("evt_3", "evt_4") == [True, True]  # they get the numbers of the lost events
    fast.database.now = FastPathState(b"secret", b"namespace", 0, receipts=2)
    assert await fast.send("evt_1") == [True], "it was forgotten"
    assert await fast.send("evt_1") == [False]
    assert fast.database.claimed.count("evt_1") == 3 and fast.database.renewals <= 1


async def test_other_processes_forget_too_after_a_number_was_drawn_again() -> None:
    fast = Fast(ids_ascend=True)
    await fast.send("evt_1", "evt_2")
    fast.database.known.clear()
    assert await fast.send("evt_3", "evt_4") == [True, True]  # they get the numbers of the lost events
    assert await fast.send("evt_3") == [False]
    assert fast.database.renewals == 0
    assert await fast.send("evt_3") == [False]
    assert fast.database.renewals == 1, "a shared cache may still have the lost events under these numbers"
