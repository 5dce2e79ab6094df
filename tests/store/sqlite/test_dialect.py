"""The SQLite dialect."""

from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.store import make_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder' / 'a %20#? b.db'}"


@pytest.mark.parametrize("address", ["sqlite:///:memory:", "sqlite://", "sqlite:///", "sqlite:x.db"])
def test_url_without_a_file_is_a_configuration_error(address: str) -> None:
    with pytest.raises(ConfigurationError, match="SQLite needs a file"):
        make_store(Settings(database=address))
