"""The payload store of an inbox."""

from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.receiver.offload import OffloadingClaims
from tests.support.aws import environment
from tests.support.servers import free_port, sqlite_file

pytestmark = pytest.mark.anyio


async def test_inbox_without_the_setting_has_no_step_for_large_bodies(tmp_path: Path) -> None:
    inbox = Inbox(sqlite_file(tmp_path / "inbox.db"), worker=False, fast_paths=False)
    async with inbox.lifespan():
        reception = inbox._runtime.reception
        assert (
            reception.receiver.claims is reception.receiver.inline_claims is reception.claimer
            and not inbox._runtime.parts
        )


async def test_started_inbox_stores_large_bodies_and_a_restart_wraps_the_step_once(tmp_path: Path) -> None:
    inbox = Inbox(
        sqlite_file(tmp_path / "inbox.db"), worker=False, fast_paths=False, payload_store=f"file://{tmp_path}/payloads"
    )
    reception = inbox._runtime.reception
    for _ in range(2):
        async with inbox.lifespan():
            step = reception.receiver.claims
            assert isinstance(step, OffloadingClaims) and step is reception.receiver.inline_claims
            assert step.claims is reception.claimer
        assert all(step is reception.claimer for step in (reception.receiver.claims, reception.receiver.inline_claims))


@pytest.mark.parametrize("store", ["payloads", "file://{tmp_path}/inbox.db"])
async def test_store_that_cannot_work_keeps_the_inbox_from_starting(tmp_path: Path, store: str) -> None:
    address = store.format(tmp_path=tmp_path)
    inbox = Inbox(sqlite_file(tmp_path / "inbox.db"), worker=False, fast_paths=False, payload_store=address)
    with pytest.raises(ConfigurationError, match="payload_store"):
        await inbox._runtime.start()


async def test_bucket_that_is_down_does_not_keep_the_inbox_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emitted: list[tuple[str, dict[str, str]]]
) -> None:
    for name, value in environment(f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    inbox = Inbox(sqlite_file(tmp_path / "inbox.db"), worker=False, fast_paths=False, payload_store="s3://bucket")
    async with inbox.lifespan():
        assert "payload_store_unavailable" in [name for name, _ in emitted]
