"""Once the database answers, the events of the spool are claimed in order. Only then are its segments removed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oncehook.model.claim import Claimed
from oncehook.model.errors import RowRefused, StoreUnavailable
from oncehook.receiver.spool.directory import SpoolDirectory
from oncehook.receiver.spool.drain import AT_ONCE, Drain
from oncehook.receiver.spool.record import encode
from oncehook.receiver.spool.writer import SpooledDelivery, SpoolWriter
from tests.support.events import make_claim
from tests.support.spool import ControlledClaims, spooled
from tests.support.waiting import stays_true

pytestmark = pytest.mark.anyio

DOWN = StoreUnavailable("down")


class Draining:
    """The drain of a folder. `write` adds deliveries of a process that has ended, or of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = SpoolDirectory(folder)
        self.directory.prepare()
        self.writer = SpoolWriter(self.directory, 2**20)
        self.claims = ControlledClaims()
        self.resumed = 0
        self.drain = Drain(self.directory, self.writer, self.claims, resume=self._resume)

    def _resume(self) -> None:
        self.resumed += 1

    def write(self, *event_ids: str, tail: bytes = b"", own: bool = False) -> None:
        segment = self.directory.create()
        for event_id in event_ids:
            segment.append(encode([make_claim(event_id)]))
        segment.append(tail)
        if own:
            self.writer.requeue([segment])
        else:
            segment.close()


@pytest.fixture
async def draining(tmp_path: Path) -> AsyncIterator[Draining]:
    draining = Draining(tmp_path)
    yield draining
    await draining.writer.close()


async def test_segments_of_this_and_of_dead_processes_are_claimed_in_order(draining: Draining) -> None:
    draining.write("evt_1", "evt_2")
    draining.write("evt_3", own=True)
    draining.write("evt_4")
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_1", "evt_2", "evt_3", "evt_4"]
    assert draining.directory.segments() == []
    assert draining.resumed


async def test_segment_of_a_living_process_is_left_to_it(draining: Draining) -> None:
    other = SpoolDirectory(draining.folder).create()
    other.append(encode([make_claim("evt_1")]))
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == []
    other.close()
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_1"]


async def test_nothing_is_removed_while_the_database_is_down(draining: Draining) -> None:
    draining.write("evt_1", own=True)
    draining.claims.failure = DOWN
    assert not await draining.drain.drain_once()
    assert (spooled(draining.folder), draining.resumed) == (["evt_1"], 0)
    draining.claims.failure = None
    assert await draining.drain.drain_once()
    assert spooled(draining.folder) == []


async def test_empty_spool_lets_deliveries_be_claimed_again(draining: Draining) -> None:
    """Nothing was written, because the disk was full. Else deliveries would go to the spool for ever."""
    assert await draining.drain.drain_once()
    assert draining.resumed == 1


async def test_drain_that_was_killed_before_the_removal_claims_the_same_events_again(draining: Draining) -> None:
    """The second time they are duplicates."""
    draining.write("evt_1", "evt_2")
    (path,) = draining.directory.segments()
    copy = path.read_bytes()
    assert await draining.drain.drain_once()
    path.write_bytes(copy)
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_1", "evt_2"] * 2
    assert draining.directory.segments() == []


async def test_batches_that_were_claimed_before_the_database_went_are_not_claimed_again(draining: Draining) -> None:
    draining.write(*(f"evt_{n}" for n in range(150)))
    draining.claims.failures["evt_120"] = DOWN
    assert not await draining.drain.drain_once()
    first = draining.claims.claimed.count("evt_0")
    draining.claims.failures.clear()
    assert await draining.drain.drain_once()
    assert (first, draining.claims.claimed.count("evt_0")) == (1, 1)
    assert set(draining.claims.claimed) == {f"evt_{n}" for n in range(150)}


async def test_segment_in_use_is_sealed_only_after_the_older_ones_are_claimed(draining: Draining) -> None:
    draining.write("evt_1", own=True)
    waiter: asyncio.Future[list[Claimed]] = asyncio.get_running_loop().create_future()
    draining.writer.add(SpooledDelivery([make_claim("evt_2")], waiter))
    await waiter
    draining.claims.failure = DOWN
    for _ in range(3):
        assert not await draining.drain.drain_once()
    assert len(draining.directory.segments()) == 2
    draining.claims.failure = None
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_1", "evt_2"]


async def test_torn_end_of_a_segment_is_dropped_and_the_segment_removed(draining: Draining) -> None:
    draining.write("evt_1", tail=encode([make_claim("evt_2")])[:-1])
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_1"]
    assert draining.directory.segments() == draining.directory.damaged() == []


async def test_segment_with_a_damaged_record_is_claimed_and_kept(draining: Draining) -> None:
    draining.write("evt_1", "evt_2", "evt_3")
    (path,) = draining.directory.segments()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_1", "evt_3"]
    assert len(draining.directory.damaged()) == 1


async def test_event_that_the_database_refuses_blocks_no_other_and_is_kept(draining: Draining) -> None:
    draining.write("evt_1", "evt_2")
    draining.claims.failures["evt_1"] = RowRefused("no")
    assert await draining.drain.drain_once()
    assert draining.claims.claimed == ["evt_2"]
    assert len(draining.directory.damaged()) == 1


async def test_segment_is_kept_for_a_refused_event_in_any_of_its_batches(draining: Draining) -> None:
    draining.write(*(f"evt_{n}" for n in range(AT_ONCE + 1)))
    draining.claims.failures["evt_0"] = RowRefused("no")
    assert await draining.drain.drain_once()
    assert len(draining.claims.claimed) == AT_ONCE
    assert len(draining.directory.damaged()) == 1


async def test_stop_during_a_removal_waits_for_it_and_closes_no_file_of_others(
    draining: Draining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed file is given to the next one. Closing it again would close that."""
    draining.write("evt_1", own=True)
    reached, go_on = threading.Event(), threading.Event()
    sync = draining.directory._sync

    def wait_and_sync() -> None:
        reached.set()
        assert go_on.wait(20)
        sync()

    monkeypatch.setattr(draining.directory, "_sync", wait_and_sync)
    draining.drain.start()
    assert await asyncio.to_thread(reached.wait, 20)
    stopping = asyncio.create_task(draining.drain.stop())
    with (draining.folder / "of-another").open("w") as of_another:  # gets the number that is free
        await stays_true(lambda: not stopping.done(), "the thread has the segment")
        go_on.set()
        await stopping
        await draining.writer.close()
        of_another.write("still open")
    assert (draining.folder / "of-another").read_text() == "still open"
    assert draining.directory.segments() == []
