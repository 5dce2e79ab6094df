"""A new PostgreSQL database for each test, which is dropped afterwards."""

import pytest

from oncehook import ConfigurationError
from oncehook.testing.database import fresh_database
from tests.support.servers import Postgres, run_sql


def databases(postgres: Postgres) -> str:
    return postgres.sql("SELECT datname FROM pg_database")


def test_database_is_empty_and_is_dropped_afterwards(postgres: Postgres) -> None:
    with fresh_database(postgres.url("postgres")) as address:
        name = address.rpartition("/")[2]
        assert name.startswith("oncehook_test_") and name in databases(postgres)
        assert run_sql(address, "SELECT count(*) FROM pg_class WHERE relname LIKE 'webhook_%'") == [(0,)]
    assert name not in databases(postgres)


def test_two_tests_get_different_databases(postgres: Postgres) -> None:
    with fresh_database(postgres.url("postgres")) as first, fresh_database(postgres.url("postgres")) as second:
        assert first != second


def test_database_is_dropped_when_the_test_fails(postgres: Postgres) -> None:
    with pytest.raises(AssertionError, match="failed"), fresh_database(postgres.url("postgres")) as address:
        raise AssertionError("failed")
    assert address.rpartition("/")[2] not in databases(postgres)


def test_server_that_cannot_be_reached_is_an_error_with_a_hint() -> None:
    unreachable = "postgresql://oncehook@127.0.0.1:1/postgres"
    with (
        pytest.raises(ConfigurationError, match="Check that it is running, that the address is correct"),
        fresh_database(unreachable),
    ):
        pass
