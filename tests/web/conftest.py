"""Fixtures for the tests of the dashboard and the API. They run on SQLite unless a test asks for both databases.

The store has its own tests on both databases; here it is enough that each query of the dashboard runs on both once.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncehook import Event, Fail, Inbox, RetryLater
from oncehook.web.dashboard import Dashboard
from oncehook.web.page import Context
from tests.support.dashboard import CONFIGURED, Browser, Site, dashboard_of
from tests.support.events import Rows
from tests.support.servers import Postgres, sqlite_file


@pytest.fixture(params=["sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty SQLite database, or of one on PostgreSQL where `both_databases` asks for it."""
    if request.param == "sqlite":
        return sqlite_file(tmp_path / "inbox.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.database(migrated=True)


@pytest.fixture
def shop(inbox: Inbox, rows: Rows) -> Inbox:
    """An inbox with one handler that writes a row and one that fails."""
    rows("CREATE TABLE paid (id TEXT)")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Any, tx: Any) -> None:
        placeholder = "?" if inbox._runtime.settings.database.startswith("sqlite") else "$1"
        await tx.execute(f"INSERT INTO paid VALUES ({placeholder})", event.object_id)

    @inbox.on("stripe", "charge.failed")
    async def declined(event: Any) -> None:
        raise Fail(f"card {event.id} declined")

    return inbox


@pytest.fixture
def context(shop: Inbox) -> Context:
    """The context that the actions of `shop`'s dashboard receive, without a server."""
    shop._runtime.configuration = replace(shop._runtime.configuration, dashboard=CONFIGURED)
    return Dashboard(shop._runtime, "the key of this run")._guard.context


@pytest.fixture
async def site(shop: Inbox) -> AsyncIterator[Site]:
    """The dashboard of `shop`."""
    async with dashboard_of(shop) as site:
        yield site


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    """A browser that is signed in as an operator."""
    async with site.signed_in() as browser:
        yield browser


@pytest.fixture
async def program(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    """An API client with all scopes."""
    async with site.program("admin") as program:
        yield program


@pytest.fixture
async def team(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """An inbox with three consumers: `main` succeeds, `analytics` has to retry, and `ledger` fails."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None: ...

    @inbox.on("stripe", "invoice.*", consumer="analytics")
    async def track(event: Event) -> None:
        raise RetryLater("the warehouse is busy", after=600)

    @inbox.on("stripe", "invoice.paid", consumer="ledger")
    async def book(event: Event) -> None:
        raise Fail("no account")

    async with inbox.lifespan():
        yield inbox


@pytest.fixture
async def team_site(team: Inbox) -> AsyncIterator[Site]:
    """The dashboard of `team`."""
    async with dashboard_of(team) as site:
        yield site
