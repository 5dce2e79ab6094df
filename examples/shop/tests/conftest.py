"""Each test gets its own shop: a database, a mail service and a broker."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

os.environ.setdefault("STRIPE_WEBHOOK_SECRET", "whsec_of_the_tests")

from examples.shop.hooks import inbox
from examples.shop.models import Base, make_engine
from examples.shop.services import broker, mail_service
from oncehook import Inbox
from oncehook.testing import isolated


@dataclass
class Shop:
    """The database and the services of a shop."""

    database: str
    engine: Engine
    services: Path

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of another process of this shop."""
        return {
            **os.environ,
            "ONCEHOOK_DATABASE": self.database,
            "ONCEHOOK_UNSAFE_DURABILITY": "true",  # the tests run PostgreSQL without fsync
            "SHOP_SERVICES": str(self.services),
        }


@pytest.fixture
def shop(oncehook_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(mail_service, "folder", tmp_path / "mail")
    monkeypatch.setattr(broker, "folder", tmp_path / "bus")
    engine = make_engine(oncehook_database)
    Base.metadata.create_all(engine)
    yield Shop(oncehook_database, engine, tmp_path)
    engine.dispose()


@pytest.fixture
def oncehook_inbox(shop: Shop) -> Inbox:
    """The shop's inbox, with its handlers and effects; the fixture `oncehook` runs it."""
    return isolated(inbox, shop.database, engine=shop.engine)
