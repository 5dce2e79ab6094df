"""SQLAlchemy engines on a test's database, and the table of a shop that its handlers write."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncehook import Inbox
from tests.support.events import Rows
from tests.support.waiting import eventually

RECEIPTS = "SELECT status, attempts FROM webhook_receipts ORDER BY id"
INVOICES = "SELECT id, status FROM invoices ORDER BY id"
DRIVERS = {
    ("sqlite", "async"): "sqlite+aiosqlite",
    ("sqlite", "sync"): "sqlite",
    ("postgresql", "async"): "postgresql+asyncpg",
    ("postgresql", "sync"): "postgresql+psycopg",
}

AnyEngine = Engine | AsyncEngine


class Base(DeclarativeBase):
    """The models of the shop."""


class Invoice(Base):
    """The table that handlers write."""

    __tablename__ = "invoices"

    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


def make_engine(database: str, kind: str, **options: Any) -> AnyEngine:
    """An `AsyncEngine` or an `Engine` on the database. `kind` is "async" or "sync"."""
    scheme, rest = database.split(":", 1)
    address = f"{DRIVERS[scheme, kind]}:{rest}"
    return create_async_engine(address, **options) if kind == "async" else create_engine(address, **options)


async def dispose(engine: AnyEngine) -> None:
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
    else:
        engine.dispose()


def by_kind(kind: str, asynchronous: Callable[..., Any], plain: Callable[..., Any]) -> Any:
    """The handler for a kind of engine."""
    return asynchronous if kind == "async" else plain


async def work_until(inbox: Inbox, rows: Rows, status: str) -> None:
    """Run the worker until the first receipt has the status."""
    inbox._runtime.start_worker()
    await eventually(lambda: rows(RECEIPTS)[0][0] == status, f"the receipt becomes {status}")


def last_error(rows: Rows) -> str:
    error: str = rows("SELECT last_error FROM webhook_receipts")[0][0]
    return error
