"""The database: the protocols that other packages use, and one package per dialect."""

from importlib import import_module

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.store.database import Database
from oncehook.store.dialect import Dialect
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.replica import Standby
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.store import Store

DIALECTS = {"sqlite": SQLITE, "postgresql": POSTGRES, "postgres": POSTGRES}
"""The dialect of each URL scheme that `database` accepts."""


def dialect_of(address: str) -> Dialect:
    """Return the dialect of a database URL. Raises ConfigurationError for an unknown scheme."""
    scheme = address.partition(":")[0]
    if scheme not in DIALECTS:
        raise ConfigurationError(
            f"database: {scheme}: is not a supported database; use sqlite:///file.db or postgresql://user@host/db"
        )
    return DIALECTS[scheme]


def make_store(settings: Settings) -> Store:
    """Make the store for `settings.database`. The caller opens it."""
    dialect = dialect_of(settings.database)
    try:
        module = import_module(f"oncehook.store.{dialect.name}.database")
    except ModuleNotFoundError:
        raise ConfigurationError(f"{dialect.title} needs its driver: pip install 'oncehook[{dialect.name}]'") from None
    database: Database = module.open_database(settings)
    return Store(database)


def make_standby(settings: Settings) -> Standby:
    """Make the connections to `settings.read_database`. The caller opens them."""
    assert settings.read_database is not None
    dialect = dialect_of(settings.database)
    if dialect is not POSTGRES or dialect_of(settings.read_database) is not POSTGRES:
        raise ConfigurationError("read_database needs PostgreSQL: it is a standby of `database`")
    standby: Standby = import_module(f"oncehook.store.{dialect.name}.replica").PostgresStandby(
        settings.read_database, settings.claim_timeout
    )
    return standby
