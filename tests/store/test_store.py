"""The store: its parts, and the settings it opens with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.keyring import generate_key
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.work import claim

pytestmark = pytest.mark.anyio


def test_store_has_the_dialect_of_its_database(tmp_path: Path) -> None:
    store = make_store(Settings(database=f"sqlite:///{tmp_path / 'a.db'}"))
    assert store.dialect.title == "SQLite"
    assert store.sql["lease"] and store.dialect is store.database.dialect


def test_store_of_an_unknown_database_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="oracle: is not a supported database"):
        make_store(Settings(database="oracle://host/db"))


def test_store_does_not_create_a_file_before_it_is_opened(tmp_path: Path) -> None:
    make_store(Settings(database=f"sqlite:///{tmp_path / 'a.db'}"))
    assert list(tmp_path.iterdir()) == []


async def test_changed_settings_apply_at_the_next_open(store: Store) -> None:
    await store.close()
    store.settings = replace(store.settings, claim_timeout=3.5)
    await store.open()
    assert store.settings.claim_timeout == store.database.connector.settings.claim_timeout == 3.5
    assert await claim(store, "evt_1")


async def test_pause_in_one_part_is_respected_by_the_leases_at_once(store: Store) -> None:
    await claim(store, "evt_1")
    await store.pauses.pause("stripe", "jane")
    assert await store.leases.take(1, 30, "worker") == []
    await store.pauses.resume("stripe", "jane")
    assert len(await store.leases.take(1, 30, "worker")) == 1


def test_key_ring_is_read_on_first_use_and_again_at_each_start(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    store = make_store(Settings(database=f"sqlite:///{tmp_path / 'a.db'}", keys=(f"file:{file}",)))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        _ = store.keys
    for key_id in ("2026a", "2026b"):
        file.write_text(f"{key_id}:{generate_key()}")
        store.load_keys()
        assert store.keys.key_ids == (key_id,)


async def test_inbox_with_an_unusable_key_does_not_start_and_does_not_show_it(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEHOOK_KEYS", "2026a:hunter2")
    with pytest.raises(ConfigurationError, match=r"keys \(ONCEHOOK_KEYS\): the key 2026a") as caught:
        await make_inbox().start()
    assert "hunter2" not in str(caught.value)
