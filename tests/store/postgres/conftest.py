"""Fixtures for tests of PostgreSQL alone."""

import pytest

from tests.support.servers import Postgres


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The address of a new PostgreSQL database with the schema."""
    return postgres.database(migrated=True)
