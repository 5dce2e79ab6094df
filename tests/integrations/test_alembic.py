"""Alembic on a database that the inbox shares: autogenerate proposes no change of the inbox's tables."""

from collections.abc import Callable
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncehook import Inbox
from oncehook.integrations.alembic import include_name
from oncehook.testing import deliver
from tests.support.engines import make_engine

pytestmark = pytest.mark.anyio


class Base(DeclarativeBase):
    pass


class Endpoint(Base):
    """A table of the shop, whose name has the prefix of the inbox's tables."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str] = mapped_column(index=True)


def proposed(engine: Engine, **settings: Any) -> list[Any]:
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=settings), Base.metadata))


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection")
async def test_autogenerate_proposes_no_change_of_inbox_tables(make_inbox: Callable[..., Inbox], database: str) -> None:
    engine = make_engine(database, "sync")
    assert isinstance(engine, Engine)
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    try:
        async with inbox.lifespan():
            await deliver(inbox, "stripe", type="invoice.paid")
        assert [kind for kind, *_ in proposed(engine)].count("remove_table") > 15  # without the filter
        assert sorted(change[0] for change in proposed(engine, include_name=include_name)) == ["add_index", "add_table"]
        Base.metadata.create_all(engine)
        assert proposed(engine, include_name=include_name) == []
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE webhook_endpoints_old (id integer)")
        ((change, table),) = proposed(engine, include_name=include_name)
        assert (change, table.name) == ("remove_table", "webhook_endpoints_old")
        left = [name for name in inspect(engine).get_table_names() if include_name(name, "table", {})]
        assert sorted(left) == ["webhook_endpoints", "webhook_endpoints_old"]
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    ("name", "type_", "parents", "included"),
    [
        ("webhook_receipts", "table", {}, False),
        ("webhook_migrations", "table", {}, False),
        ("webhook_payloads_20261115", "table", {}, False),
        ("webhook_payloads_2026", "table", {}, True),
        ("webhook_endpoints", "table", {}, True),
        ("status", "column", {"table_name": "webhook_receipts"}, False),
        ("status", "column", {"table_name": "orders"}, True),
        ("public", "schema", {}, True),
    ],
)
def test_only_names_that_the_migrations_create_are_excluded(
    name: str, type_: str, parents: dict[str, str | None], included: bool
) -> None:
    assert include_name(name, type_, parents) is included
