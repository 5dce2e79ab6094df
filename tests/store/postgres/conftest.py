"""Fixtures for tests of PostgreSQL alone."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from tests.support.servers import Postgres, run_sql
from tests.support.sessions import CREATE_ROLE, OBJECTS


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The address of a new PostgreSQL database with the schema."""
    return postgres.database(migrated=True)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, for one handler at a time, and a table `ledger`."""
    inbox = make_inbox(worker=False, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (note text PRIMARY KEY)")
        yield inbox


@pytest.fixture
def tenant_inbox(inbox: Inbox, database: str) -> Inbox:
    """The same with the tables, functions and the role that `tests.support.sessions` uses."""
    for statement in (*OBJECTS, CREATE_ROLE):
        run_sql(database, statement)
    return inbox
