"""How this repository runs the tests of its examples: on SQLite and on a private PostgreSQL, in turn.

A project of yours needs nothing of this: `oncehook_database` is there, and `--oncehook-postgres` chooses the server.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncehook.testing.database import fresh_database
from tests.support.servers import Postgres, private_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The cluster of this run, or one for the examples alone."""
    port = os.environ.get("ONCEHOOK_TEST_POSTGRES_PORT")
    if port:
        yield Postgres.running(int(port))
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
