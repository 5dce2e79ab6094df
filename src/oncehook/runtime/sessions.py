"""Handlers' transactions on a user's own connections: a SQLAlchemy engine, or a database of Django."""

from typing import Any

from oncehook.model.errors import ConfigurationError
from oncehook.store.store import Store


def make_sessions(engine: Any, store: Store) -> Any:
    """Build the sessions that give handlers a transaction on `engine`: SQLAlchemy's, or one that makes its own."""
    if hasattr(engine, "make_sessions"):
        return engine.make_sessions(store)
    try:
        from oncehook.integrations.sqlalchemy import Sessions
    except ModuleNotFoundError:
        raise ConfigurationError("the `engine` argument needs SQLAlchemy: pip install 'oncehook[sqlalchemy]'") from None
    return Sessions(engine, store)
