"""Commands of an inbox with a payload store: doctor, show, events, forget and prune."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import advance, deliver
from tests.support.command_line import Run
from tests.support.payload_stores import THRESHOLD, FolderStore, large_body, large_inbox
from tests.support.serve import write_config


@pytest.fixture
def folder(in_folder: Path, database: str, make_inbox: Callable[..., Inbox]) -> FolderStore:
    """The payload store of an inbox with two large events, one of them old and ignored."""
    store = FolderStore(in_folder / "payloads")
    write_config(in_folder, database, f'payload_store = "{store.address}"', f"payload_threshold = {THRESHOLD}")
    asyncio.run(fill(make_inbox, store))
    return store


async def fill(make_inbox: Callable[..., Inbox], store: FolderStore) -> None:
    inbox = large_inbox(make_inbox, store, types=["kept"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", large_body("evt_old"))
        await advance(inbox, "60d")
        await deliver(inbox, "stripe", large_body("evt_1", type="kept", object={"id": "in_7"}))


def test_commands_work_with_bodies_in_the_payload_store(run: Run, folder: FolderStore) -> None:
    assert f"payload_store: {folder.address} answers, and has 2 objects" in run("doctor").out
    (body,) = [data for data in folder.objects().values() if b"evt_1" in data]
    assert run("show", "2", "--raw").out.encode() == body
    assert "Bodies in the payload store are not searched" in run("events", "--search", "Zanzibar").error
    assert "deleted 1 payload objects" in run("prune").out
    assert list(folder.objects().values()) == [body]


def test_commands_say_what_a_payload_store_that_is_not_mounted_means(
    run: Run, folder: FolderStore, in_folder: Path
) -> None:
    moved = folder.folder.rename(in_folder / "moved")
    shown = run("show", "2")
    assert "The payload cannot be shown: the directory" in shown.out + shown.error
    forgotten = run("forget", "--object", "in_1", "--yes")
    assert forgotten.code == 0 and "payload objects could not be deleted now: `oncehook prune`" in forgotten.error
    folder.folder.write_text("")
    doctor = run("doctor")
    assert doctor.code == 1 and "payload_store: the directory" in doctor.out
    folder.folder.unlink()
    moved.rename(folder.folder)
    assert run("prune").code == 0 and not folder.objects()
