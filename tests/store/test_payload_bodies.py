"""Bodies are read from the row or from the payload store."""

from pathlib import Path

import pytest

from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from oncehook.store.store import Store
from tests.support.events import make_claim, make_leased
from tests.support.payload_stores import FolderStore
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio


async def claim_object(store: Store, event_id: str, body: bytes) -> str:
    """Claim an event whose body is an object, and return its address."""
    address = store.objects.address(body)
    claim = make_claim(event_id, body=body)
    await store.payload_objects.reserve([(address, claim)])
    await store.objects.write(address, body)
    await store.claims.insert([make_claim(event_id, body=b"", object=address)])
    return address


async def test_body_in_the_row_needs_no_store(store: Store) -> None:
    leased = make_leased()
    assert await store.bodies.open_lease(leased) is leased
    assert await store.bodies.read(leased, b"body", "{}", None) == (b"body", "{}")


async def test_lease_gets_its_body_or_the_reason(database: str, tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        address = await claim_object(store, "evt_1", b"large")
        (leased,) = await store.leases.take(1, 30, "w")
        assert (leased.body, leased.object) == (b"", address)
        opened = await store.bodies.open_lease(leased)
        assert (opened.body, opened.object, opened.payload_error) == (b"large", None, None)
        folder.remove(address)
        assert isinstance((await store.bodies.open_lease(leased)).payload_error, ObjectMissing)
        folder.folder.rename(tmp_path / "elsewhere")
        opened = await store.bodies.open_lease(leased)
        assert opened.body is None and isinstance(opened.payload_error, ObjectStoreUnavailable)


async def test_payload_that_was_erased_since_the_lease_is_erased_and_not_missing(database: str, tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        address = await claim_object(store, "evt_1", b"large")
        (leased,) = await store.leases.take(1, 30, "w")
        await store.retention.erase([leased.receipt], None, "me", "{}")
        folder.remove(address)
        opened = await store.bodies.open_lease(leased)
        assert (opened.body, opened.payload_error) == (None, None)
