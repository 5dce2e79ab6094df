"""A delivery is spooled if its claim fails or is too slow, and never if the database refuses it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oncehook.model.errors import IntakeFull, RowRefused, StoreUnavailable
from oncehook.receiver.spool import step as module
from oncehook.receiver.spool.directory import SpoolDirectory
from oncehook.receiver.spool.step import SpoolStep
from oncehook.receiver.spool.writer import SpoolWriter
from tests.support.events import make_claim
from tests.support.spool import ControlledClaims, spooled
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

DOWN = StoreUnavailable("down")


class Spool:
    """A spool step around claims that a test controls. The source `stripe` does not spool."""

    def __init__(self, folder: Path, limit: int = 2**20) -> None:
        self.folder = folder
        directory = SpoolDirectory(folder)
        directory.prepare()
        self.claims = ControlledClaims()
        self.writer = SpoolWriter(directory, limit)
        self.step = SpoolStep(self.claims, self.writer, lambda source: source == "github")

    async def send(self, event_id: str, source: str = "github", body: bytes = b"{}") -> int:
        (claimed,) = await self.step.claim([make_claim(event_id, source=source, body=body)])
        return claimed.receipt


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path)
    yield spool
    spool.claims.gate.set()
    await spool.step.drain()
    await spool.writer.close()


async def test_delivery_is_claimed_while_the_database_answers(spool: Spool) -> None:
    assert await spool.send("evt_1") == 1
    assert spooled(spool.folder) == []


@pytest.mark.parametrize("failure", [DOWN, IntakeFull("full")])
async def test_delivery_is_spooled_without_a_receipt_if_it_cannot_be_claimed(
    spool: Spool, failure: StoreUnavailable
) -> None:
    spool.claims.failure = failure
    assert await spool.send("evt_1") == 0
    assert spooled(spool.folder) == ["evt_1"]


async def test_source_that_does_not_spool_gets_the_error(spool: Spool) -> None:
    spool.claims.failure = DOWN
    with pytest.raises(StoreUnavailable):
        await spool.send("evt_1", source="stripe")
    assert spooled(spool.folder) == []


async def test_row_that_the_database_refuses_is_not_spooled(spool: Spool) -> None:
    spool.claims.failure = RowRefused("no")
    with pytest.raises(RowRefused):
        await spool.send("evt_1")
    assert spooled(spool.folder) == []


async def test_deliveries_go_to_the_spool_directly_until_the_database_answers(spool: Spool) -> None:
    spool.claims.failure = DOWN
    await spool.send("evt_1")
    spool.claims.failure = None
    assert await spool.send("evt_2") == 0
    spool.step.resume()
    assert await spool.send("evt_3") == 1
    assert spooled(spool.folder) == ["evt_1", "evt_2"]


async def test_delivery_whose_claim_hangs_is_spooled_once_and_its_claim_continues(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_SECONDS", 0.02)
    spool.claims.gate.clear()
    assert await spool.send("evt_1") == 0
    spool.claims.gate.set()
    await eventually(lambda: spool.claims.claimed == ["evt_1"], "the claim continues")
    await spool.step.drain()
    assert spooled(spool.folder) == ["evt_1"]


async def test_claim_that_fails_after_its_delivery_was_spooled_changes_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_SECONDS", 0.02)
    spool.claims.gate.clear()
    assert await spool.send("evt_1") == 0
    spool.claims.failure = DOWN
    spool.claims.gate.set()
    await spool.step.drain()
    assert spooled(spool.folder) == ["evt_1"]


async def test_full_spool_is_the_error_of_the_database_and_claims_are_tried_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit=1000)
    spool.claims.failure = DOWN
    for event_id in ("evt_1", "evt_2"):
        with pytest.raises(StoreUnavailable):
            await spool.send(event_id, body=b"x" * 2000)
    spool.claims.failure = None
    assert await spool.send("evt_3") == 1
    await spool.writer.close()


async def test_duplicate_while_spooled_gets_the_same_answer(spool: Spool) -> None:
    spool.claims.failure = DOWN
    assert await asyncio.gather(*(spool.send("evt_1") for _ in range(3))) == [0, 0, 0]
