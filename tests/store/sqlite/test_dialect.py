"""The SQLite dialect."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.store import make_store
from oncehook.store.sqlite.dialect import SQLITE, database_path

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder' / 'a %20#? b.db'}"


@pytest.mark.parametrize("address", ["sqlite:///:memory:", "sqlite://", "sqlite:///", "sqlite:x.db"])
def test_url_without_a_file_is_a_configuration_error(address: str) -> None:
    with pytest.raises(ConfigurationError, match="SQLite needs a file"):
        make_store(Settings(database=address))


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///inbox.db", "inbox.db"), ("sqlite:////var/lib/inbox.db", "/var/lib/inbox.db")]
)
def test_url_has_a_relative_or_absolute_path(url: str, path: str) -> None:
    assert database_path(url) == Path(path)


def test_arrays_and_texts_are_json() -> None:
    assert SQLITE.array([3, 1]) == "[3, 1]" and SQLITE.texts(["a"]) == '["a"]'


def test_time_is_a_text_that_sorts_as_a_time() -> None:
    early, late = datetime(2026, 11, 15, 9, tzinfo=UTC), datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert SQLITE.time(early) == "2026-11-15T09:00:00.000000Z"
    assert SQLITE.earliest < SQLITE.time(early) < SQLITE.time(late)


def test_pattern_is_written_for_glob() -> None:
    assert SQLITE.pattern("a[b]*") == "a[[]b]*"
