"""Rehearsals with the handlers of an inbox, on its own store or on another one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from oncehook import Event, Inbox, SyncEvent
from oncehook.runtime.checks import open_store
from oncehook.runtime.rehearsals import make_rehearse
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    """An inbox whose handler writes to a table."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger (note) VALUES ('written')")

    return inbox


async def test_a_rehearsal_runs_the_handler_and_rolls_its_writes_back(shop: Inbox, rows: Rows) -> None:
    async with shop.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        await claim(shop, "evt_1")
        receipt = await shop._runtime.store.receipts.get(1)
        assert receipt is not None
        rehearsal = await shop._runtime.rehearse(receipt)
    assert rehearsal.error is None and [s.sql for s in rehearsal.statements] == [
        "INSERT INTO ledger (note) VALUES ('written')"
    ]
    assert rows("SELECT count(*) FROM ledger") == [(0,)]
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("received", 0)]


async def test_a_rehearsal_works_on_a_store_that_a_command_has_opened(shop: Inbox, rows: Rows) -> None:
    async with shop.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        await claim(shop, "evt_1")
    async with open_store(shop._runtime) as store:
        receipt = await store.receipts.get(1)
        assert receipt is not None
        rehearse = await make_rehearse(shop._runtime, store)
        assert (await rehearse(receipt)).error is None
    assert rows("SELECT count(*) FROM ledger") == [(0,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_rehearsal_on_another_store_uses_sessions_of_the_engine(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, tmp_path: Path
) -> None:
    inbox = make_inbox(engine=create_engine(database))
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    def paid(event: SyncEvent, session: Any) -> None:
        session.execute(text("INSERT INTO ledger (note) VALUES ('written')"))

    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        await claim(inbox, "evt_1")
    async with open_store(inbox._runtime) as store:
        receipt = await store.receipts.get(1)
        assert receipt is not None
        rehearsal = await (await make_rehearse(inbox._runtime, store))(receipt)
    assert rehearsal.error is None and len(rehearsal.statements) == 1
    assert rows("SELECT count(*) FROM ledger") == [(0,)]
