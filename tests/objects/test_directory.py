"""Payload objects in a directory."""

import os
import stat
from pathlib import Path

import pytest

from oncehook.objects.directory import DirectoryObjects
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable

pytestmark = pytest.mark.anyio


async def test_object_is_written_read_and_deleted_with_its_empty_folder(tmp_path: Path) -> None:
    objects = DirectoryObjects(f"file://{tmp_path}/a%20b")
    await objects.check()
    await objects.write("2026-11-17/one", b"\x00\xff")
    file = tmp_path / "a b" / "2026-11-17" / "one"
    assert await objects.read("2026-11-17/one") == file.read_bytes() == b"\x00\xff"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    await objects.delete("2026-11-17/one")
    await objects.delete("2026-11-17/one")
    assert not file.parent.exists()
    with pytest.raises(ObjectMissing, match="does not exist"):
        await objects.read("2026-11-17/one")
    await objects.close()


async def test_file_and_directories_are_synced_before_the_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    objects = DirectoryObjects(f"file://{tmp_path}/root")
    await objects.write("day/one", b"x")
    root = tmp_path / "root"
    assert synced == [str(root), str(root / "day" / "one"), str(root / "day")]
    await objects.close()


async def test_directory_that_is_not_mounted_is_unavailable_and_its_objects_are_not_missing(tmp_path: Path) -> None:
    objects = DirectoryObjects(f"file://{tmp_path}/root")
    with pytest.raises(ObjectStoreUnavailable, match="does not exist"):
        await objects.read("day/one")
    with pytest.raises(ObjectStoreUnavailable):
        await objects.delete("day/one")
    await objects.close()


async def test_directory_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    objects = DirectoryObjects(f"file://{tmp_path}/root")
    for attempt in (objects.check(), objects.write("day/one", b"x")):
        with pytest.raises(ObjectStoreUnavailable, match="the directory"):
            await attempt
    await objects.close()
