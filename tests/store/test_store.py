"""The store: its parts, and the settings it opens with."""

from dataclasses import replace
from pathlib import Path

import pytest

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
