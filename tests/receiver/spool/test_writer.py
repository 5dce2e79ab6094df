"""Deliveries are accepted after their fsync, together, and rejected if the disk or the limit is full."""

import asyncio
import resource
from pathlib import Path

import pytest

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import StoreUnavailable
from oncehook.receiver.spool import writer as module
from oncehook.receiver.spool.directory import SpoolDirectory
from oncehook.receiver.spool.writer import SpooledDelivery, SpoolWriter
from tests.support.events import make_claim
from tests.support.spool import spooled

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(tmp_path: Path) -> SpoolDirectory:
    directory = SpoolDirectory(tmp_path / "spool")
    directory.prepare()
    return directory


def add(writer: SpoolWriter, *claims: Claim) -> "asyncio.Future[list[Claimed]]":
    waiter: asyncio.Future[list[Claimed]] = asyncio.get_running_loop().create_future()
    writer.add(SpooledDelivery(claims, waiter))
    return waiter


async def test_deliveries_at_the_same_time_share_one_fsync(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(directory, 2**20)
    await add(writer, make_claim("evt_0"))
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    results = await asyncio.gather(*(add(writer, make_claim(f"evt_{n}")) for n in range(1, 50)))
    assert len(synced) == 1
    assert {(claimed.receipt, claimed.fresh) for (claimed,) in results} == {(0, True)}
    assert spooled(directory.folder) == [f"evt_{n}" for n in range(50)]
    await writer.close()


async def test_delivery_that_does_not_fit_is_rejected_and_room_makes_it_fit_again(directory: SpoolDirectory) -> None:
    writer = SpoolWriter(directory, 3000)
    waiters = [add(writer, make_claim(f"evt_{n}", body=b"x" * 1000)) for n in range(5)]
    await asyncio.wait(waiters)
    assert [waiter.exception() is None for waiter in waiters] == [True, True, False, False, False]
    assert spooled(directory.folder) == ["evt_0", "evt_1"]
    assert vars(writer)["is_full"]
    for segment in await writer.take_sealed():
        directory.remove(segment)
    await add(writer, make_claim("evt_9"))
    assert not writer.is_full
    await writer.close()


async def test_full_disk_rejects_deliveries_and_leaves_those_before_readable(directory: SpoolDirectory) -> None:
    writer = SpoolWriter(directory, 2**30)
    await add(writer, make_claim("evt_1"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(StoreUnavailable):
            await add(writer, make_claim("evt_2", body=b"x" * 5000))
        with pytest.raises(StoreUnavailable):
            await add(writer, make_claim("evt_3", body=b"x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await add(writer, make_claim("evt_4"))
    assert spooled(directory.folder) == ["evt_1", "evt_4"], "no record follows a torn one in its segment"
    await writer.close()


async def test_failed_fsync_is_no_ack_and_ends_the_segment(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(directory, 2**20)
    await add(writer, make_claim("evt_1"))

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(StoreUnavailable):
            await add(writer, make_claim("evt_2"))
    await add(writer, make_claim("evt_3"))
    assert len(directory.segments()) == 2
    await writer.close()


async def test_segment_that_is_large_is_followed_by_another(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1500)
    writer = SpoolWriter(directory, 2**20)
    for number in range(4):
        await add(writer, make_claim(f"evt_{number}", body=b"x" * 700))
    assert len(directory.segments()) == 2
    assert spooled(directory.folder) == ["evt_0", "evt_1", "evt_2", "evt_3"]
    await writer.close()


async def test_segments_that_are_requeued_do_not_replace_those_sealed_since(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1)
    writer = SpoolWriter(directory, 2**20)
    await add(writer, make_claim("evt_1"))
    first = await writer.take_sealed()
    await add(writer, make_claim("evt_2"))
    await add(writer, make_claim("evt_3"))  # seals the segment of evt_2
    writer.requeue(first)
    sealed = await writer.take_sealed()
    assert sorted(segment.path for segment in sealed) == sorted(directory.segments())
    assert len(sealed) == 3 and sealed[0] is first[0]
    for segment in sealed:
        segment.close()
