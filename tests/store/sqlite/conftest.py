"""Fixtures for tests of SQLite alone."""

from pathlib import Path

import pytest

from tests.support.servers import sqlite_file


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The address of a new SQLite file with the schema."""
    return sqlite_file(tmp_path / "inbox.db")
