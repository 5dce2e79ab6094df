"""lease → handle → settle, on both databases, asserting rows."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry, RetryLater
from oncehook.concurrency import quarantine as quarantine_module
from oncehook.concurrency.quarantine import Quarantine
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.operations.forget import forget
from oncehook.testing import deliver, drain
from oncehook.worker.rescue import rescue
from tests.support.servers import ask
from tests.support.waiting import eventually
from tests.support.work import HISTORY, QUICK, STATES, claim, receipts_are

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Inbox]:
    """An inbox without a worker yet, and a table that handlers write to."""
    inbox = make_inbox(worker=False, lease="0.6s")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        ask(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")
        yield inbox


@pytest.fixture
def insert(database: str) -> str:
    """A statement that writes an event's id and a note, in the words of the database."""
    marks = "$1, $2" if database.startswith("postgresql") else "?, ?"
    return f"INSERT INTO ledger (event_id, note) VALUES ({marks})"


async def test_the_work_and_the_mark_are_one(inbox: Inbox, database: str, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, event.type)

    await claim(inbox, *(f"evt_{n:02d}" for n in range(40)))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 40))
    assert sorted(ask(database, "SELECT event_id FROM ledger")) == [(f"evt_{n:02d}",) for n in range(40)]
    assert ask(database, "SELECT count(*) FROM webhook_attempts WHERE outcome = 'processed'") == [(40,)]
    assert ask(database, "SELECT count(*) FROM webhook_receipts WHERE processed_at IS NULL") == [(0,)]


async def test_a_transient_failure_leaves_nothing_and_then_succeeds(inbox: Inbox, database: str, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, f"attempt {event.attempt}")
        if event.attempt < 3:
            raise ConnectionError("the bank is closed")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 1))
    assert ask(database, "SELECT event_id, note FROM ledger") == [("evt_1", "attempt 3")]
    failed = (
        (1, "retrying", "ConnectionError: the bank is closed"),
        (2, "retrying", "ConnectionError: the bank is closed"),
    )
    assert ask(database, HISTORY) == [*failed, (3, "processed", None)]


async def test_a_handler_that_always_fails_is_a_dead_letter_after_its_attempts(inbox: Inbox, database: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event) -> None:
        raise ValueError("never")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "failed", 1))
    assert ask(database, STATES) == [("evt_1", "failed", 3, "failed", "ValueError: never")]
    assert ask(database, "SELECT event_id, last_error, attempts FROM webhook_dlq") == [
        ("evt_1", "ValueError: never", 3)
    ]


async def test_giving_up_is_at_once_and_asking_for_later_waits(inbox: Inbox, database: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event) -> None:
        raise Fail("no such customer") if event.id == "evt_1" else RetryLater("not yet", after="1h")

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "failed", 1))
    await eventually(receipts_are(database, "retrying", 1))
    assert [row[:3] for row in ask(database, STATES)] == [("evt_1", "failed", 1), ("evt_2", "retrying", 1)]
    due = await inbox._runtime.store.leases.next_due()
    assert due is not None
    assert 3500 < due < 4000


async def test_a_receipt_that_is_leased_without_a_handler_goes_back_without_an_attempt(
    inbox: Inbox, database: str
) -> None:
    await claim(inbox, "evt_1")
    (leased,) = await inbox._runtime.store.leases.take(1, 30, "test")
    assert await inbox._runtime.start_processor().process(leased) is None
    assert ask(database, STATES) == [("evt_1", "received", 0, None, None)]


async def test_a_plain_function_runs_in_a_thread_with_a_plain_tx(inbox: Inbox, database: str, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    def paid(event: Event, tx: Any) -> None:
        tx.execute(insert, event.id, tx.fetchval("SELECT 'plain'"))

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 1))
    assert ask(database, "SELECT event_id, note FROM ledger") == [("evt_1", "plain")]


async def test_plain_functions_have_threads_of_their_own_as_many_as_run_at_once(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    """They all meet at the barrier: nobody's thread pool, and no other code in it, limits how many."""
    inbox = make_inbox(worker=False, concurrency=40)
    inbox.source("stripe", secrets=["whsec_test"])
    all_here = threading.Barrier(40, timeout=30)
    names: set[str] = set()
    asked: ContextVar[str] = ContextVar("asked", default="nobody")

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    def paid(event: Event) -> None:
        names.add(threading.current_thread().name)
        assert asked.get() == "the test"
        all_here.wait()

    async with inbox.lifespan():
        await claim(inbox, *(f"evt_{n:02d}" for n in range(40)))
        asked.set("the test")
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "processed", 40))
    assert len(names) == 40
    assert all(name.startswith("oncehook-handler") for name in names)


async def test_an_attempt_keeps_the_first_line_of_an_error_and_no_row(inbox: Inbox, database: str, insert: str) -> None:
    canary = "-".join(("a", "row", "of", "theirs"))  # so that it is no line of the source either
    ask(database, "CREATE UNIQUE INDEX once ON ledger (note)")
    ask(database, f"INSERT INTO ledger VALUES ('evt_0', '{canary}')")

    class Unsayable(Exception):
        def __str__(self) -> str:
            raise ValueError(canary)

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event, tx: Any) -> None:
        if event.id == "evt_1":
            await tx.execute(insert, event.id, canary)
        raise Unsayable if event.id == "evt_2" else ValueError(f"1 error\n  input_value={canary}")

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "failed", 3))
    kept = ask(database, "SELECT last_error FROM webhook_receipts ORDER BY event_id")
    assert "unique" in kept[0][0].lower()
    assert kept[1:] == [("Unsayable: ",), ("ValueError: 1 error",)]
    assert canary not in str(ask(database, "SELECT error, traceback FROM webhook_attempts") + kept)


async def test_a_batch_handler_gets_many_and_one_poison_event_takes_no_neighbour_with_it(
    inbox: Inbox, database: str, insert: str
) -> None:
    sizes: list[int] = []

    @inbox.on("stripe", "invoice.paid", batch=50, retry=Retry(attempts=1))
    async def paid(events: list[Event], tx: Any) -> None:
        sizes.append(len(events))
        for event in events:
            await tx.execute(insert, event.id, "batch")
            if event.id == "evt_13":
                raise ValueError("poison")

    await claim(inbox, *(f"evt_{n:02d}" for n in range(50)))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 49))
    await eventually(receipts_are(database, "failed", 1))
    assert sizes[0] == 50
    assert len(ask(database, "SELECT DISTINCT event_id FROM ledger")) == 49
    assert ask(database, "SELECT count(*) FROM ledger") == [(49,)]
    assert ask(database, "SELECT event_id, attempts FROM webhook_receipts WHERE status = 'failed'") == [("evt_13", 1)]


async def test_an_erased_event_of_a_batch_fails_by_itself(inbox: Inbox, database: str, insert: str) -> None:
    calls: list[list[str]] = []

    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event], tx: Any) -> None:
        calls.append([event.id for event in events])
        for event in events:
            await tx.execute(insert, event.id, "batch")

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    ((erased,),) = ask(database, "SELECT id FROM webhook_receipts WHERE event_id = 'evt_2'")
    assert await forget(inbox._runtime.store, [erased], actor="a test", object_id="in_1") == 1
    await drain(inbox)
    assert calls == [["evt_1", "evt_3"]]
    assert sorted(ask(database, "SELECT event_id FROM ledger")) == [("evt_1",), ("evt_3",)]
    assert ask(database, STATES) == [
        ("evt_1", "processed", 1, "processed", None),
        ("evt_2", "failed", 1, "failed", "its payload was erased"),
        ("evt_3", "processed", 1, "processed", None),
    ]


async def test_a_lost_mark_of_a_batch_that_wrote_nothing_costs_its_neighbours_nothing(
    inbox: Inbox, database: str
) -> None:
    calls: list[list[str]] = []

    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event]) -> None:
        calls.append([event.id for event in events])
        if len(calls) == 1:  # as a rescuer would, while this one is busy
            ask(database, "UPDATE webhook_receipts SET status = 'retrying' WHERE event_id = 'evt_2'")

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    await drain(inbox)
    assert calls == [["evt_1", "evt_2", "evt_3"], ["evt_2"]]
    assert [row[:3] for row in ask(database, STATES)] == [
        ("evt_1", "processed", 1), ("evt_2", "processed", 2), ("evt_3", "processed", 1)
    ]  # fmt: skip
    assert sorted(ask(database, HISTORY)) == [(1, "processed", None), (1, "processed", None), (2, "processed", None)]


async def test_a_stop_in_the_middle_of_a_batch_gives_its_leases_back(inbox: Inbox, database: str, insert: str) -> None:
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event], tx: Any) -> None:
        for event in events:
            await tx.execute(insert, event.id, f"attempt {event.attempt}")
        if not inside.is_set():
            inside.set()
            await asyncio.Event().wait()

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    inbox._runtime.start_worker()
    assert inbox._runtime.worker is not None
    await asyncio.wait_for(inside.wait(), 10)
    await inbox._runtime.worker.stop(grace=0.05)
    assert [row[:3] for row in ask(database, STATES)] == [(f"evt_{n}", "received", 0) for n in (1, 2, 3)]
    assert ask(database, "SELECT * FROM ledger") == ask(database, HISTORY) == []
    inbox._runtime.worker = None
    await drain(inbox)
    assert sorted(ask(database, "SELECT * FROM ledger")) == [(f"evt_{n}", "attempt 1") for n in (1, 2, 3)]


@pytest.mark.parametrize("batch", [None, 10])
async def test_a_handler_that_raises_cancelled_by_itself_fails_as_by_any_error(
    inbox: Inbox, database: str, batch: int | None
) -> None:
    @inbox.on("stripe", "invoice.paid", batch=batch, retry=QUICK)
    async def paid(given: Any, tx: Any) -> None:
        await tx.fetchval("SELECT 1")
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "failed", 2))
    assert [row[:3] for row in ask(database, STATES)] == [("evt_1", "failed", 3), ("evt_2", "failed", 3)]
    assert ask(database, "SELECT DISTINCT error FROM webhook_attempts") == [("CancelledError: ",)]


async def test_an_event_that_hangs_in_a_batch_takes_no_neighbour_with_it(inbox: Inbox, database: str) -> None:
    """The lease is 0.6 s: whoever waits behind the one that hangs, twice for 0.9 s, must be kept all the while."""

    @inbox.on("stripe", "invoice.paid", batch=10, timeout="0.9s", retry=Retry(attempts=1))
    async def paid(events: list[Event], tx: Any) -> None:
        if any(event.id == "evt_2" for event in events):
            await asyncio.Event().wait()

    await claim(inbox, *(f"evt_{n}" for n in range(1, 6)))
    inbox._runtime.start_worker()
    await eventually(
        lambda: not ask(database, "SELECT 1 FROM webhook_receipts WHERE status NOT IN ('processed', 'failed')")
    )
    assert [row[:3] for row in ask(database, STATES)] == [
        (f"evt_{n}", "failed" if n == 2 else "processed", 1) for n in range(1, 6)
    ]


async def test_a_stop_while_a_batch_reruns_one_by_one_waits_no_longer_than_its_grace(
    inbox: Inbox, database: str
) -> None:
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid", batch=10, retry=Retry(attempts=1))
    async def paid(events: list[Event], tx: Any) -> None:
        if len(events) > 1:
            raise ValueError("not all at once")
        if events[0].id != "evt_1":
            inside.set()
            await asyncio.sleep(30)

    await claim(inbox, *(f"evt_{n}" for n in range(1, 6)))
    inbox._runtime.start_worker()
    await asyncio.wait_for(inside.wait(), 20)
    started = time.monotonic()
    await inbox._runtime.worker.stop(grace=0.1)  # type: ignore[union-attr]
    assert time.monotonic() - started < 15
    assert [row[:3] for row in ask(database, STATES)] == [
        ("evt_1", "processed", 1), *((f"evt_{n}", "received", 0) for n in range(2, 6))
    ]  # fmt: skip


async def test_what_a_stop_has_cancelled_is_given_back_and_no_attempt_is_counted(
    inbox: Inbox, database: str, insert: str
) -> None:
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, f"attempt {event.attempt}")
        try:
            if not inside.is_set():
                inside.set()
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("as many libraries put it") from None

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await asyncio.wait_for(inside.wait(), 20)
    await inbox._runtime.worker.stop(grace=0.05)  # type: ignore[union-attr]
    assert ask(database, STATES) == [("evt_1", "received", 0, None, None)]
    assert ask(database, "SELECT * FROM ledger") == ask(database, HISTORY) == []
    inbox._runtime.worker = None
    await drain(inbox)
    assert ask(database, "SELECT * FROM ledger") == [("evt_1", "attempt 1")]


async def test_a_worker_that_lost_its_lease_cannot_commit(inbox: Inbox, database: str, insert: str) -> None:
    taken = asyncio.Event()
    go_on = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        if event.attempt == 1:
            taken.set()
            await go_on.wait()
        await tx.execute(insert, event.id, f"attempt {event.attempt}")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await asyncio.wait_for(taken.wait(), 10)
    ask(database, "UPDATE webhook_receipts SET status = 'retrying', lease_until = NULL")  # as a rescuer would
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(receipts_are(database, "processed", 1))
    go_on.set()
    await inbox._runtime.worker.stop()  # type: ignore[union-attr]
    assert ask(database, "SELECT note FROM ledger") == [("attempt 2",)]
    assert ask(database, HISTORY) == [(2, "processed", None)]


async def test_a_handler_that_blocks_the_loop_for_three_leases_keeps_its_lease(
    inbox: Inbox, database: str, insert: str
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        time.sleep(1.8)  # the loop stands still; the heartbeat does not
        await tx.execute(insert, event.id, f"attempt {event.attempt}")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 1))
    assert ask(database, "SELECT note FROM ledger") == [("attempt 1",)]


async def test_a_hung_handler_is_ended_at_its_timeout_and_tried_again(inbox: Inbox, database: str) -> None:
    @inbox.on("stripe", "invoice.paid", timeout="0.2s", retry=QUICK)
    async def paid(event: Event) -> None:
        if event.attempt == 1:
            await asyncio.Event().wait()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 1))
    assert ask(database, HISTORY)[0] == (1, "retrying", "TimeoutError: the handler did not end within 0.2 s")


async def test_an_expired_lease_comes_back_and_is_counted_until_it_is_dead(
    inbox: Inbox, database: str, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=2, first=0, most=0))
    async def paid(event: Event) -> None: ...

    await claim(inbox, "evt_1", "evt_2")
    for crash in (1, 2):
        leased = await inbox._runtime.store.leases.take(1, 0, "gone", rescued=crash > 1)
        assert [one.event_id for one in leased] == ["evt_1"]
        await eventually(lambda: bool(ask(database, "SELECT 1 FROM webhook_receipts WHERE status = 'processing'")))
        rescued = 0
        while not rescued:  # the lease of no seconds runs out with the database's next tick
            rescued = await rescue(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources)
    states = [row[:4] for row in ask(database, STATES)]
    assert states == [("evt_1", "failed", 2, "crashed"), ("evt_2", "received", 0, None)]
    told = [(line["event"], line["event_id"], line["attempt"]) for line in lines()]
    assert told == [("lease_expired", "evt_1", 1), ("lease_expired", "evt_1", 2), ("dead_letter", "evt_1", 2)]


async def crash(inbox: Inbox, event_id: str) -> None:
    """An event whose worker died, and which is due in an hour. No worker runs yet: it would take the event first."""
    await claim(inbox, event_id)
    (leased,) = await inbox._runtime.store.leases.take(1, 30, "gone")
    crashed = Settled(leased.receipt, leased.lease, State.RETRYING, "crashed", after=3600, crashed=True)
    assert await inbox._runtime.store.leases.settle([crashed])


def make_due(database: str, event_id: str) -> None:
    ask(database, f"UPDATE webhook_receipts SET next_attempt_at = NULL WHERE event_id = '{event_id}'")


async def test_a_rescued_event_waits_for_its_turn_and_nobody_waits_for_it_long(inbox: Inbox, database: str) -> None:
    """Beside a handler that takes long, others go on; when it has ended, the rescued one runs, and on its own."""
    running: set[str] = set()
    beside: list[set[str]] = []
    slow_ends, slow_began = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        running.add(event.id)
        if event.id == "slow":
            slow_began.set()
            await slow_ends.wait()
        if event.id == "crashed":
            beside.append(running - {"crashed"})
            await asyncio.sleep(0.1)
            beside.append(running - {"crashed"})
        running.discard(event.id)

    await crash(inbox, "crashed")
    await claim(inbox, "slow")
    inbox._runtime.start_worker()
    assert inbox._runtime.worker is not None
    await asyncio.wait_for(slow_began.wait(), 20)
    make_due(database, "crashed")
    inbox._runtime.worker._quarantine._next_at = 0.0  # its turn is now
    await claim(inbox, *(f"evt_{n:02d}" for n in range(20)))
    inbox._runtime.worker.wake()
    await eventually(receipts_are(database, "processed", 20))
    assert not beside
    await claim(inbox, *(f"later_{n:02d}" for n in range(20)))
    inbox._runtime.worker.wake()
    await eventually(receipts_are(database, "processed", 40))
    slow_ends.set()
    inbox._runtime.worker.wake()
    await eventually(receipts_are(database, "processed", 42), within=60)
    assert beside == [set(), set()]
    assert ask(database, "SELECT attempts FROM webhook_receipts WHERE event_id = 'crashed'") == [(2,)]


async def test_a_rescued_event_gets_its_turn_although_others_keep_coming(
    inbox: Inbox, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_module, "INTERVAL", 1.0)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await asyncio.sleep(0.05)

    await crash(inbox, "zzz")
    await claim(inbox, *(f"evt_{n:04d}" for n in range(50)))
    inbox._runtime.start_worker()
    await eventually(lambda: not receipts_are(database, "processed", 0)())
    make_due(database, "zzz")
    deadline, number = time.monotonic() + 60, 50
    while not ask(database, "SELECT 1 FROM webhook_receipts WHERE event_id = 'zzz' AND status = 'processed'"):
        assert time.monotonic() < deadline
        await claim(inbox, *(f"evt_{n:04d}" for n in range(number, number + 20)))
        number += 20
        inbox._runtime.worker.wake()  # type: ignore[union-attr]
        await asyncio.sleep(0.05)


def test_the_patience_for_a_turn_grows_and_so_does_the_time_between() -> None:
    now = 100.0

    class Told:
        def monotonic(self) -> float:
            return now

    quarantine, stalled = Quarantine(Told()), 0.0  # type: ignore[arg-type]
    leased: Any = object()
    for turn in range(6):
        assert quarantine.is_due
        quarantine.hold(leased)
        assert quarantine.patience_left == 2**turn
        now += quarantine.patience_left
        stalled += 2**turn
        assert quarantine.postpone() is leased and quarantine.patience_left is None and not quarantine.is_due
        now += 10 * 2**turn
    assert stalled / (now - 100) < 0.1
    quarantine.hold(leased)
    quarantine.start()
    assert quarantine.patience_left is None and quarantine.postpone() is None
    now += 7
    quarantine.finish()
    assert not quarantine.is_due
    now += 7
    assert quarantine.is_due


async def test_stopping_gives_back_what_was_not_started(inbox: Inbox, database: str) -> None:
    started = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        started.set()
        await asyncio.sleep(0.2)

    await claim(inbox, *(f"evt_{n:02d}" for n in range(60)))
    inbox._runtime.start_worker()
    await asyncio.wait_for(started.wait(), 10)
    await inbox._runtime.worker.stop()  # type: ignore[union-attr]
    assert ask(database, "SELECT count(*) FROM webhook_receipts WHERE status = 'processing'") == [(0,)]
    waiting = ask(database, "SELECT count(*) FROM webhook_receipts WHERE status = 'received' AND attempts = 0")[0][0]
    assert waiting + ask(database, "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'")[0][0] == 60
    assert waiting > 0


async def test_a_stop_that_is_cancelled_goes_on_and_one_that_is_cut_short_closes_the_store(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_inbox(stop_grace="1h")
    inbox.source("stripe", secrets=["whsec_test"])
    inside, go_on = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "*")
    async def hang(event: Event) -> None:
        inside.set()
        await go_on.wait()

    async def live() -> None:
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await inside.wait()

    life = asyncio.create_task(live())
    await eventually(lambda: inside.is_set() and inbox._runtime.worker is None)
    life.cancel()
    await asyncio.sleep(0.05)
    assert not life.done()
    await inbox._runtime.store.ping()
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life
    with pytest.raises(Unavailable):
        await inbox._runtime.store.ping()
    go_on.set()


async def test_a_duplicate_of_a_receipt_that_is_being_handled_is_answered_at_once(inbox: Inbox, insert: str) -> None:
    inside = asyncio.Event()
    go_on = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        inside.set()
        await go_on.wait()
        await tx.execute(insert, event.id, "slow")

    first = await deliver(inbox, "stripe", type="invoice.paid")
    assert first.status == 202
    inbox._runtime.start_worker()
    await asyncio.wait_for(inside.wait(), 10)
    started = time.monotonic()
    assert (await deliver(inbox, "stripe", first.sent)).outcome == (200, "duplicate")
    assert time.monotonic() - started < 0.5
    go_on.set()
