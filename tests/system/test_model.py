"""Random sequences of everything that can happen to events, compared with a model in plain Python.

The steps are deliveries and duplicates, handlers that work, fail, retry later or give up, workers that die, stop or
wake up late, replays, erasures, pruning and time that passes. After each step the rows equal the model, every change of
a status is one of TRANSITIONS, and the handlers' writes exist exactly once for each event and replay.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from oncehook import Event, Fail, Inbox, Retry, RetryLater, State
from oncehook.model.lease import Leased, Settled
from oncehook.model.states import TRANSITIONS
from oncehook.operations.forget import forget
from oncehook.testing import Bench
from oncehook.testing.database import fresh_database
from oncehook.testing.steps import lease_due
from oncehook.worker.rescue import rescue
from tests.support.counts import Repetitions
from tests.support.servers import Postgres

DAY = 86400.0
LEASE = 600.0
SHORT, LONG, TO_PAYLOADS, TO_RECEIPTS = 700.0, 50 * 3600.0, 310 * DAY, 1200 * DAY
"""Durations whose sums never reach a limit by accident: a lease, RetryLater's 40 h with 10 % of jitter, and the
retention of 300 and 1100 days, which ends with a day."""
RETRY_LATER = 40 * 3600.0
PAYLOADS, RECEIPTS = 300 * DAY, 1100 * DAY
ATTEMPTS = 3
MAX_STEPS = 60
MAX_TIME = 40 * 365 * DAY
assert ATTEMPTS * MAX_STEPS * SHORT < RETRY_LATER and MAX_STEPS * LONG < PAYLOADS / 2 < TO_PAYLOADS - PAYLOADS / 2

NAMES = ["evt_1", "evt_2", "evt_batch_1", "evt_batch_2"]
IDS = st.sampled_from(NAMES)
ENDS = st.sampled_from(["works", "fails", "later", "gives up"])
PLANS = st.fixed_dictionaries({name: st.lists(ENDS, max_size=ATTEMPTS) for name in NAMES})

SQLITE_MOVES = """
CREATE TRIGGER moved AFTER UPDATE OF status ON webhook_receipts WHEN OLD.status <> NEW.status
BEGIN INSERT INTO moves VALUES (OLD.status, NEW.status); END
"""
POSTGRES_MOVES = """
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO moves VALUES (OLD.status, NEW.status); RETURN NEW; END $$;
CREATE TRIGGER moved AFTER UPDATE OF status ON webhook_receipts FOR EACH ROW WHEN (OLD.status <> NEW.status)
EXECUTE FUNCTION note_move()
"""


@dataclass
class Model:
    """A receipt, as it should be."""

    receipt: int
    received: float  # by the model's clock, which only `advance` moves
    state: State = State.RECEIVED
    attempts: int = 0
    crashes: int = 0
    replays: int = 0
    lease: int = 0  # the fence, which each lease increases by a random number
    was_leased: bool = False  # since the fence was read
    due: float = 0.0
    leased_until: float = 0.0
    has_payload: bool = True

    @property
    def is_finished(self) -> bool:
        return self.state in (State.PROCESSED, State.IGNORED)


class Everything(RuleBasedStateMachine):
    """What can happen, as rules; each does it to the inbox and to the model."""

    kind: str
    server: str

    def __init__(self) -> None:
        super().__init__()
        self.exit = ExitStack()
        self.now = 0.0
        self.known: dict[str, Model] = {}
        self.ledger: set[tuple[int, int]] = set()  # (receipt, replays) whose handler has worked
        self.plans: dict[str, list[str]] = {}
        self.zombies: list[Leased] = []
        database = self.exit.enter_context(new_database(self.kind, self.server))
        self.insert = "INSERT INTO ledger VALUES ({}, {})".format(
            *(("?", "?") if self.kind == "sqlite" else ("$1", "$2"))
        )
        self.bench = self.exit.enter_context(Bench(self.make_inbox(database)))
        self.run_sql = self.exit.enter_context(open_connection(database))
        self.run_sql("CREATE TABLE ledger (receipt BIGINT NOT NULL, replays INTEGER NOT NULL)")
        self.run_sql("CREATE TABLE moves (before TEXT NOT NULL, after TEXT NOT NULL)")
        self.run_sql(SQLITE_MOVES if self.kind == "sqlite" else POSTGRES_MOVES)

    def teardown(self) -> None:
        self.exit.close()

    def make_inbox(self, database: str) -> Inbox:
        inbox = Inbox(
            database,
            worker=False,
            lease=LEASE,
            dedupe_window=RECEIPTS,
            payload_retention=PAYLOADS,
            unsafe_durability=True,
        )
        inbox.source("stripe", secrets=["whsec_test"])
        again_at_once = Retry(attempts=ATTEMPTS, first=0, most=0)

        @inbox.on("stripe", "invoice.paid", retry=again_at_once)
        async def one(event: Event, tx: Any) -> None:
            await self.handle(event, tx)

        @inbox.on("stripe", "charge.paid", retry=again_at_once, batch=5)
        async def many(events: list[Event], tx: Any) -> None:
            for event in events:
                await self.handle(event, tx)

        return inbox

    async def handle(self, event: Event, tx: Any) -> None:
        await tx.execute(self.insert, event.receipt, event.replays)
        end = self.planned(event.id, event.attempt)
        if end == "fails":
            raise ValueError("no")
        if end == "later":
            raise RetryLater("not yet", after=RETRY_LATER)
        if end == "gives up":
            raise Fail("never")

    def planned(self, event_id: str, attempt: int) -> str:
        plan = self.plans.get(event_id, [])
        return plan[attempt - 1] if attempt <= len(plan) else "works"

    # -- the door -------------------------------------------------------------------------------------------------

    @rule(event_id=IDS, copies=st.integers(1, 3))
    def deliver(self, event_id: str, copies: int) -> None:
        type_ = "charge.paid" if "batch" in event_id else "invoice.paid"
        first = self.bench.deliver("stripe", type=type_, id=event_id, copies=copies)
        assert first.receipt is not None
        if event_id in self.known:
            assert (first.outcome, first.receipt) == ((200, "duplicate"), self.known[event_id].receipt)
        else:
            assert first.outcome == (202, "accepted")
            self.known[event_id] = Model(first.receipt, self.now, due=self.now)
        assert {(one.outcome, one.receipt) for one in first.others} <= {((200, "duplicate"), first.receipt)}

    # -- the work -------------------------------------------------------------------------------------------------

    @rule(plans=PLANS)
    def work(self, plans: dict[str, list[str]]) -> None:
        """A worker works until nothing is due."""
        self.plans = plans
        worked = self.bench.drain()
        self.take_back()
        expected = [model.receipt for model in self.known.values() if self.is_due(model)]
        for event_id, model in self.known.items():
            while self.is_due(model):
                model.attempts, model.was_leased = model.attempts + 1, True
                self.end(model, self.planned(event_id, model.attempts) if model.has_payload else "gives up")
        assert sorted(one.receipt for one in worked) == sorted(expected)

    @rule()
    def a_rescuer_comes(self) -> None:
        self.rescue()

    def rescue(self) -> None:
        """Expired leases are taken back, and no worker is there yet."""
        assert (
            self.bench.run(
                rescue(
                    self.bench.inbox._runtime.store,
                    self.bench.inbox._runtime.handlers,
                    self.bench.inbox._runtime.sources,
                )
            )
            == self.take_back()
        )

    def take_back(self) -> int:
        expired = [m for m in self.known.values() if m.state is State.PROCESSING and m.leased_until < self.now]
        for model in expired:
            self.end(model, "crashed")
        return len(expired)

    def is_due(self, model: Model) -> bool:
        return model.state in (State.RECEIVED, State.RETRYING) and model.due <= self.now

    def end(self, model: Model, how: str) -> None:
        model.crashes = model.crashes + 1 if how == "crashed" else 0
        if how == "works":
            model.state = State.PROCESSED
            assert (model.receipt, model.replays) not in self.ledger
            self.ledger.add((model.receipt, model.replays))
        elif how == "gives up" or model.attempts >= ATTEMPTS:
            model.state = State.FAILED
        else:
            model.state, model.due = State.RETRYING, self.now + (1.1 * RETRY_LATER if how == "later" else 0.0)

    def lease(self, most: int) -> list[tuple[Model, Leased]]:
        """Take what is due as a worker does: a receipt whose worker died is taken alone, when no other is due."""
        leased = self.bench.run(lease_due(self.bench.inbox, most))
        due = [model for model in self.known.values() if self.is_due(model)]
        usual = [model for model in due if not model.crashes]
        assert len(leased) == (min(most, len(usual)) if usual else min(1, len(due)))
        taken = {one.receipt: one for one in leased}
        pairs = [(model, taken.pop(model.receipt)) for model in (usual or due) if model.receipt in taken]
        assert not taken, "something was leased that is not due"
        for model, one in pairs:
            model.state, model.leased_until = State.PROCESSING, self.now + LEASE
            assert one.lease > model.lease
            model.attempts, model.lease = model.attempts + 1, one.lease
            assert (one.attempt, one.replays) == (model.attempts, model.replays)
            assert (one.body is not None) == model.has_payload
        return pairs

    @rule(most=st.integers(1, 3))
    def a_worker_dies(self, most: int) -> None:
        self.die(most)

    def die(self, most: int) -> None:
        """A worker takes some and is heard of no more, or late."""
        self.zombies += [leased for _, leased in self.lease(most)]

    @rule(most=st.integers(1, 3), times=st.integers(1, ATTEMPTS), wakes=st.booleans())
    def workers_die_in_a_row(self, most: int, times: int, wakes: bool) -> None:
        """Each lease runs out and is taken back; the first may wake while the last still has the receipt."""
        before = len(self.zombies)
        for _ in range(times):
            self.die(most)
            self.wait(SHORT)
            self.rescue()
        if wakes and len(self.zombies) > before:
            self.die(most)
            self.wake(self.zombies.pop(before))

    @rule(most=st.integers(1, 3))
    def stop(self, most: int) -> None:
        """A worker takes some, is asked to stop, and gives them back: no attempt is counted."""
        pairs = self.lease(most)
        if pairs:
            self.bench.run(self.bench.inbox._runtime.store.leases.release([leased.lease_key for _, leased in pairs]))
        for model, _ in pairs:
            model.attempts -= 1
            model.state = State.RETRYING if model.attempts else State.RECEIVED

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_worker_wakes(self, data: st.DataObject) -> None:
        self.wake(self.zombies.pop(data.draw(st.integers(0, len(self.zombies) - 1))))

    def wake(self, leased: Leased) -> None:
        """A worker that seemed dead continues: its work counts only if its receipt was not rescued."""
        model = next((known for known in self.known.values() if known.receipt == leased.receipt), None)
        still_leased = model is not None and (model.state, model.lease) == (State.PROCESSING, leased.lease)
        assert self.bench.run(self.finish(leased)) == still_leased
        if model is not None and still_leased:
            self.end(model, "works")

    async def finish(self, leased: Leased) -> bool:
        transaction: Any = self.bench.inbox._runtime.store.transaction()
        tx = transaction.make_tx(is_async=True)
        await tx.execute(self.insert, leased.receipt, leased.replays)
        transaction.close_tx()
        return bool(await transaction.settle([Settled(*leased.lease_key, State.PROCESSED, "processed")]))

    # -- operators and time ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        model = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        may = model.has_payload and model.state in (State.PROCESSED, State.FAILED, State.IGNORED)
        assert self.bench.replay(model.receipt) == may
        if may:
            model.state, model.attempts, model.crashes, model.due = State.RECEIVED, 0, 0, model.received
            model.replays += 1

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        """Erase the data of a person: the receipt stays, and an event that was not handled yet cannot be handled."""
        model = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        store = self.bench.inbox._runtime.store
        assert self.bench.run(forget(store, [model.receipt], actor="a test", object_id="x")) == model.has_payload
        model.has_payload = False

    @rule(by=st.sampled_from([SHORT, LONG, SHORT, TO_PAYLOADS, TO_RECEIPTS]))
    def time_passes(self, by: float) -> None:
        self.wait(by)

    def wait(self, by: float) -> None:
        if self.now + by > MAX_TIME:
            return
        self.bench.advance(by)
        self.now += by

    @rule()
    def prune(self) -> None:
        self.bench.prune()
        for event_id, model in list(self.known.items()):
            age = self.now - model.received
            if model.is_finished and age > RECEIPTS:
                del self.known[event_id]
            elif model.is_finished and age > PAYLOADS:
                model.has_payload = False

    # -- what holds after each step -------------------------------------------------------------------------------

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        rows = self.run_sql(
            "SELECT r.event_id, r.id, r.status, r.attempts, r.crashes, r.replays, p.receipt_id IS NOT NULL "
            "FROM webhook_receipts r LEFT JOIN webhook_payloads p ON p.receipt_id = r.id"
        )
        expected = {
            (event_id, m.receipt, m.state.value, m.attempts, m.crashes, m.replays, m.has_payload)
            for event_id, m in self.known.items()
        }
        assert set(rows) == expected and len(rows) == len(expected)

    @invariant()
    def fence_changes_only_by_a_lease(self) -> None:
        for event_id, lease in self.run_sql("SELECT event_id, lease FROM webhook_receipts"):
            model = self.known[event_id]
            assert lease > model.lease if model.was_leased else lease == model.lease
            model.lease, model.was_leased = lease, False

    @invariant()
    def work_was_applied_once(self) -> None:
        rows = self.run_sql("SELECT receipt, replays FROM ledger")
        assert sorted(rows) == sorted(self.ledger)

    @invariant()
    def every_move_was_legal(self) -> None:
        for before, after in self.run_sql("SELECT DISTINCT before, after FROM moves"):
            assert State(after) in TRANSITIONS[State(before)], (before, after)


# -- databases ------------------------------------------------------------------------------------------------------


@contextmanager
def new_database(kind: str, server: str) -> Iterator[str]:
    if kind == "postgres":
        with fresh_database(server) as address:
            yield address
        return
    with tempfile.TemporaryDirectory(prefix="oncehook-model-") as folder:
        yield f"sqlite:///{Path(folder) / 'inbox.db'}"


@contextmanager
def open_connection(database: str) -> Iterator[Any]:
    """Yield a function that runs a query, on one connection, because there are many queries."""
    if database.startswith("sqlite:///"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:///"), timeout=10, isolation_level=None)) as file:
            yield lambda statement: file.execute(statement).fetchall()
        return
    with psycopg.connect(database, autocommit=True) as connection:

        def query(statement: str) -> list[Any]:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield query


def run(kind: str, postgres: Postgres, *, examples: int, steps: int) -> None:
    machine = type(f"Everything on {kind}", (Everything,), {"kind": kind, "server": postgres.url("postgres")})
    slow = list(HealthCheck)  # each example creates a database, which takes time
    options: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": slow}
    limits = settings(max_examples=examples, stateful_step_count=steps, **options)
    run_state_machine_as_test(machine, settings=limits)


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 10), ("postgres", 3)])
def test_random_sequence_of_steps_agrees_with_the_model(kind: str, examples: int, postgres: Postgres) -> None:
    run(kind, postgres, examples=examples, steps=50)


@pytest.mark.torture
@pytest.mark.parametrize(("kind", "examples"), [("sqlite", (80, 2000)), ("postgres", (25, 400))])
def test_many_random_sequences_of_steps_agree_with_the_model(
    kind: str, examples: tuple[int, int], postgres: Postgres, repetitions: Repetitions
) -> None:
    run(kind, postgres, examples=repetitions(*examples), steps=MAX_STEPS)
