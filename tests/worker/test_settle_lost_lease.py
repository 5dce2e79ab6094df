"""The settler when one lease of a batch was lost."""

import asyncio

import pytest

from oncehook.store.store import Store
from oncehook.worker.settle import Settler
from tests.support.stores import claim_and_lease, lose_lease, processed

pytestmark = pytest.mark.anyio


async def test_settler_tells_each_caller_whether_its_lease_was_held(store: Store) -> None:
    held, lost = await claim_and_lease(store, 2)
    await lose_lease(store, lost)
    settler = Settler(store.leases)
    were_held = await asyncio.gather(settler.settle(processed(held)), settler.settle(processed(lost)))
    assert list(were_held) == [True, False]
