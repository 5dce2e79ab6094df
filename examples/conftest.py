"""Runs the tests of the examples on SQLite and on a private PostgreSQL.

Your own project does not need this file: the fixture `oncehook_database` is built in, and `--oncehook-postgres` selects
a server.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncehook.testing.database import fresh_database
from tests.support.servers import Postgres, private_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL cluster of this test run, or a new one if the examples run alone."""
    folder = os.environ.get("ONCEHOOK_TEST_FOLDER")
    if folder:
        server = Postgres.shared(Path(folder))
        yield server
        server.disconnect()
        return
    with private_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def oncehook_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with fresh_database(server.url("postgres")) as address:
        yield address
