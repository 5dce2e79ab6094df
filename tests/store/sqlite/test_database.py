"""The SQLite database as a whole: opening and closing it, and its lock for handlers."""

import asyncio
from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.stores import claim_one, open_store, sqlite_of

pytestmark = pytest.mark.anyio


@pytest.mark.system
async def test_open_creates_and_migrates_the_file(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'new' / 'inbox.db'}") as store:
        assert await store.schema.pending() == []
        assert await claim_one(store, make_claim()) == 1


async def test_file_can_be_opened_again_after_a_close(store: Store) -> None:
    await claim_one(store, make_claim("evt_1"))
    await store.close()
    await store.open()
    assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh is False


async def test_only_one_transaction_of_a_handler_is_open_at_a_time(store: Store) -> None:
    first, second = store.transaction(), store.transaction()
    await first.connection()
    lock = store.database.handler_lock
    assert lock is not None and lock.locked()
    waiting = asyncio.ensure_future(second.connection())
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done, "the second transaction must wait for the first"
    await first.rollback()
    await asyncio.wait_for(waiting, 30)
    await second.rollback()


async def test_workers_of_other_processes_cannot_be_woken(store: Store) -> None:
    assert not store.wakeups.is_on
    await asyncio.wait_for(store.wakeups.listen(lambda: None), 1)


def test_transaction_of_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    store = make_store(Settings(database=f"sqlite:///{tmp_path / 'a.db'}"))
    with pytest.raises(StoreUnavailable, match="not open"):
        store.transaction()


async def test_file_that_every_user_can_read_is_a_risk(store: Store) -> None:
    assert await store.risks() == []
    sqlite_of(store).file.path.chmod(0o644)
    (risk,) = await store.risks()
    assert "all users of this machine can read it" in risk and "chmod o=" in risk
