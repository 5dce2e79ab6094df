"""The shop on a database and with an outside of each test's own."""

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
from examples.shop.outside import broker, mail_service
from oncehook import Inbox
from oncehook.testing import isolated


@dataclass
class Shop:
    """What there is to see of a shop."""

    database: str
    engine: Engine
    outside: Path

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    @property
    def environment(self) -> dict[str, str]:
        """For a process of the same shop."""
        return {
            **os.environ,
            "ONCEHOOK_DATABASE": self.database,
            "ONCEHOOK_UNSAFE_DURABILITY": "true",  # the tests' PostgreSQL does not wait for its disk
            "SHOP_OUTSIDE": str(self.outside),
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
