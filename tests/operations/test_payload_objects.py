"""Collection of payload objects that no payload needs."""

from pathlib import Path
from typing import Any

import pytest

from oncehook.operations.payload_objects import collect_objects, delete_released
from tests.support.events import Rows, make_claim
from tests.support.payload_stores import FolderStore
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio


async def test_unused_objects_are_deleted_after_their_time_and_others_stay(
    database: str, tmp_path: Path, rows: Rows
) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        addresses = [store.objects.address(b"body") for _ in range(3)]
        used = make_claim("evt_1", body=b"", object=addresses[0])
        await store.payload_objects.reserve([(address, used) for address in addresses])
        for address in addresses[:2]:  # the process that reserved the last one died before it wrote it
            await store.objects.write(address, b"body")
        await store.claims.insert([used])
        assert await collect_objects(store) == 0 and len(folder.objects()) == 2, "a claim may still take them"
        assert await collect_objects(store, unused=-10.0) == 2
        assert list(folder.objects()) == addresses[:1]
        assert rows("SELECT address FROM webhook_payload_objects") == [(addresses[0],)]


async def test_object_that_cannot_be_deleted_keeps_its_row(
    database: str, tmp_path: Path, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        kept, deleted = await store.objects.put(b"kept"), await store.objects.put(b"deleted")
        await store.payload_objects.reserve([(address, make_claim("evt_1")) for address in (kept, deleted)])
        await store.payload_objects.release_unused(-10.0, 10)
        folder.remove(kept)
        Path(kept.removeprefix("file://")).mkdir()  # no object, and a file cannot replace it
        assert await delete_released(store) == 1
        assert emitted == [("payload_objects_not_deleted", {"count": 1})]
        assert rows("SELECT address FROM webhook_payload_objects") == [(kept,)]


async def test_store_that_is_down_keeps_the_rows_for_the_next_run(
    database: str, tmp_path: Path, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        address = await store.objects.put(b"body")
        await store.payload_objects.reserve([(address, make_claim("evt_1"))])
        await store.payload_objects.release_unused(-10.0, 10)
        folder.folder.rename(tmp_path / "elsewhere")
        assert await delete_released(store) == 0
        assert emitted == [("payload_objects_not_deleted", {"count": 1})]
        (tmp_path / "elsewhere").rename(folder.folder)
        assert await delete_released(store) == 1
        assert not folder.objects() and rows("SELECT count(*) FROM webhook_payload_objects") == [(0,)]


async def test_objects_of_several_pages_are_all_deleted_and_counted(
    database: str, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.operations.payload_objects.BATCH", 2)
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        addresses = [await store.objects.put(b"%d" % number) for number in range(5)]
        await store.payload_objects.reserve([(address, make_claim("evt_1")) for address in addresses])
        assert await collect_objects(store, unused=-10.0) == 5
        assert not folder.objects() and rows("SELECT count(*) FROM webhook_payload_objects") == [(0,)]
