"""The database: protocols that the rest of the code uses, and one package per dialect."""

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.store.protocols import Store


def make_store(settings: Settings) -> Store:
    """The store of `settings.database`, not opened yet."""
    address = settings.database
    if address.startswith("sqlite:"):
        from oncehook.store.sqlite.store import SqliteStore

        return SqliteStore(settings)
    if address.startswith(("postgresql://", "postgres://")):
        try:
            from oncehook.store.postgres.store import PostgresStore
        except ModuleNotFoundError:
            raise ConfigurationError("PostgreSQL needs its driver: pip install 'oncehook[postgres]'") from None
        return PostgresStore(settings)
    scheme = address.partition(":")[0]
    raise ConfigurationError(
        f"database: {scheme}: is not a database Oncehook knows; use sqlite:///file.db or postgresql://user@host/db"
    )
