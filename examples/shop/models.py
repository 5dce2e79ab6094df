"""The shop's tables. The inbox has its tables, webhook_…, in the same database, so that both commit together."""

import os
import re

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

DATABASE = os.environ.get("ONCEHOOK_DATABASE", "sqlite:///shop.db")
MAX_HANDLERS, MAX_ANALYTICS = 16, 4
"""How many handlers of the consumers `main` and `analytics` run at the same time."""


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoices"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[int]
    currency: Mapped[str]
    status: Mapped[str]


class Entitlement(Base):
    """The plan that a customer may use, by subscription."""

    __tablename__ = "entitlements"

    subscription: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    plan: Mapped[str]
    is_active: Mapped[bool]


class Sale(Base):
    """A paid invoice, as analytics counts it."""

    __tablename__ = "sales"

    invoice: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    currency: Mapped[str]
    day: Mapped[str]


def make_engine(database: str) -> Engine:
    """An engine on the inbox's database, with one connection per concurrent handler and some for the pages."""
    address = re.sub("^postgres(ql)?://", "postgresql+psycopg://", database)
    return create_engine(address, pool_size=MAX_HANDLERS + MAX_ANALYTICS, max_overflow=8)
