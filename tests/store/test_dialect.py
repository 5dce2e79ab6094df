"""What the dialects of both databases have in common."""

from dataclasses import FrozenInstanceError

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.store import DIALECTS, dialect_of
from oncehook.store.dialect import Dialect
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.queries import SQL, load
from oncehook.store.sqlite.dialect import SQLITE

BOTH = [POSTGRES, SQLITE]


@pytest.mark.parametrize("dialect", BOTH, ids=lambda dialect: dialect.name)
def test_dialect_has_a_folder_of_sql(dialect: Dialect) -> None:
    assert (SQL / dialect.name / "leases.sql").exists()


@pytest.mark.parametrize("dialect", BOTH, ids=lambda dialect: dialect.name)
def test_replay_statements_of_a_dialect_exist(dialect: Dialect) -> None:
    assert set(dialect.replay) <= set(load(dialect.name))


@pytest.mark.parametrize("dialect", BOTH, ids=lambda dialect: dialect.name)
def test_dialect_cannot_be_changed(dialect: Dialect) -> None:
    with pytest.raises(FrozenInstanceError):
        dialect.name = "other"  # type: ignore[misc]


def test_only_sqlite_has_a_single_writer() -> None:
    assert (SQLITE.single_writer, POSTGRES.single_writer) == (True, False)


@pytest.mark.parametrize("url", ["sqlite:///a.db", "postgresql://host/a", "postgres://host/a"])
def test_dialect_is_chosen_by_the_scheme_of_the_url(url: str) -> None:
    assert dialect_of(url) is DIALECTS[url.partition(":")[0]]


def test_unknown_scheme_is_a_configuration_error_that_names_both_urls() -> None:
    with pytest.raises(ConfigurationError, match=r"mysql: is not a supported database.*sqlite:///.*postgresql://"):
        dialect_of("mysql://user:secret@host/db")
