"""Duplicates are recorded in the background: in batches, without delaying the receiver, and never twice."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from oncehook.config.settings import Settings
from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.errors import StoreUnavailable
from oncehook.model.states import State
from oncehook.receiver import duplicates
from oncehook.receiver.duplicates import DuplicateLog
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio


RECORDED = "SELECT delivery_id FROM webhook_deliveries ORDER BY id"


class GatedStore:
    """A real store that records the sizes of writes and can hold them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.failure: Exception | None = None

    async def note_duplicates(self, batch: Sequence[Duplicate]) -> None:
        self.sizes.append(len(batch))
        self.begun.set()
        await self.gate.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        await self.store.claims.note_duplicates(batch)


@pytest.fixture
async def watched(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GatedStore]:
    monkeypatch.setattr(duplicates, "PAUSE", 0.01)
    store = make_store(Settings(database=database))
    await store.open()
    watched = GatedStore(store)
    yield watched
    watched.gate.set()
    await store.close()


async def claim_twice(watched: GatedStore, claim: Claim) -> Claimed:
    await watched.store.claims.insert([claim])
    (again,) = await watched.store.claims.insert([claim])
    return again


def note(log: DuplicateLog, outcome: Claimed, *names: str) -> None:
    for name in names:
        log.note(make_claim(delivery_id=name), outcome)


async def test_duplicates_are_written_together_after_a_pause(watched: GatedStore, rows: Rows) -> None:
    log = DuplicateLog(watched)  # type: ignore[arg-type]
    outcome = await claim_twice(watched, make_claim())
    note(log, outcome, *(f"d_{n}" for n in range(5)))
    assert watched.sizes == []
    await asyncio.wait_for(watched.begun.wait(), 30)
    await log.drain()
    assert watched.sizes == [5]
    assert rows(RECORDED) == [(f"d_{n}",) for n in range(5)]


async def test_drain_waits_for_the_running_write_and_writes_later_duplicates(watched: GatedStore, rows: Rows) -> None:
    log = DuplicateLog(watched)  # type: ignore[arg-type]
    outcome = await claim_twice(watched, make_claim())
    watched.gate.clear()
    note(log, outcome, "first")
    await asyncio.wait_for(watched.begun.wait(), 30)
    note(log, outcome, "second")
    draining = asyncio.create_task(log.drain())
    await next_turn()
    assert not draining.done()
    watched.gate.set()
    await asyncio.wait_for(draining, 30)
    assert rows(RECORDED) == [("first",), ("second",)]
    await log.drain()
    assert watched.sizes == [1, 1]


async def test_duplicates_are_recorded_after_a_drain(watched: GatedStore, rows: Rows) -> None:
    log = DuplicateLog(watched)  # type: ignore[arg-type]
    outcome = await claim_twice(watched, make_claim())
    for name in ("first", "second"):
        note(log, outcome, name)
        await log.drain()
    assert rows(RECORDED) == [("first",), ("second",)]


async def test_a_flood_is_written_in_batches_and_dropped_duplicates_are_counted(
    watched: GatedStore, rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duplicates, "MAX_WAITING", 70)
    monkeypatch.setattr(duplicates, "BATCH", 30)
    log = DuplicateLog(watched)  # type: ignore[arg-type]
    outcome = await claim_twice(watched, make_claim())
    note(log, outcome, *(f"d_{n:03}" for n in range(100)))
    await log.drain()
    assert watched.sizes == [30, 30, 10]
    assert rows(RECORDED) == [(f"d_{n:03}",) for n in range(70)]
    (line,) = [record for record in caplog.records if vars(record).get("event") == "duplicate_records_dropped"]
    assert line.__dict__["count"] == 30
    assert log.dropped == 0


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), ZeroDivisionError()], ids=repr)
async def test_a_failed_write_is_logged_and_the_next_write_succeeds(
    watched: GatedStore,
    rows: Rows,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    caplog.set_level(logging.INFO, "oncehook")
    log = DuplicateLog(watched)  # type: ignore[arg-type]
    outcome = await claim_twice(watched, make_claim())
    watched.failure = failure
    monkeypatch.setattr(duplicates, "BATCH", 2)
    note(log, outcome, "lost", "with", "the", "rest")
    await log.drain()
    (line,) = [record for record in caplog.records if record.name == "oncehook"]
    assert (line.__dict__["event"], line.__dict__["count"]) == ("duplicate_records_lost", 4)
    assert watched.sizes == [2]
    note(log, outcome, "recorded")
    await log.drain()
    assert rows(RECORDED) == [("recorded",)]
    assert outcome.status is State.RECEIVED
