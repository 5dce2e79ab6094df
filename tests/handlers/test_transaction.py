"""The types of `tx`: both databases have these methods, and results are rows by column name."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import AsyncTransaction, Event, Inbox, SyncEvent, SyncTransaction
from oncehook.testing import deliver, drain
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


def methods(protocol: type[Any]) -> list[str]:
    return [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]


def test_both_types_have_the_same_methods() -> None:
    assert methods(AsyncTransaction) == methods(SyncTransaction)
    assert methods(AsyncTransaction) == ["execute", "executemany", "fetch", "fetchrow", "fetchval", "transaction"]


@pytest.fixture
def insert(rows: Rows, database: str) -> str:
    rows("CREATE TABLE notes (id INTEGER, note TEXT)")
    return f"INSERT INTO notes VALUES ({'?, ?' if database.startswith('sqlite') else '$1, $2'})"


async def test_async_handler_uses_every_method(inbox: Inbox, insert: str, rows: Rows) -> None:
    seen: list[Any] = []

    @inbox.on("stripe", "*")
    async def handle(event: Event, tx: AsyncTransaction) -> None:
        await tx.execute(insert, 1, "first")
        await tx.executemany(insert, [(2, "second"), (3, "third")])
        seen.extend(row["note"] for row in await tx.fetch("SELECT note FROM notes ORDER BY id"))
        row = await tx.fetchrow("SELECT id, note FROM notes WHERE id = 2")
        assert row is not None
        seen.append((dict(row.items()), list(row.keys()), list(row.values()), row.get("other", "none")))
        seen.append((await tx.fetchval("SELECT count(*) FROM notes"), await tx.fetchrow("SELECT 1 WHERE false")))
        with pytest.raises(ZeroDivisionError):
            async with tx.transaction():
                await tx.execute("DELETE FROM notes")
                _ = 1 / 0

    await deliver(inbox, "stripe")
    (receipt,) = await drain(inbox)
    assert receipt.last_error is None
    assert seen[:3] == ["first", "second", "third"]
    assert seen[3:] == [({"id": 2, "note": "second"}, ["id", "note"], [2, "second"], "none"), (3, None)]
    assert rows("SELECT count(*) FROM notes") == [(3,)], "the savepoint must undo only its own block"


async def test_plain_handler_uses_the_same_methods_without_await(inbox: Inbox, insert: str, rows: Rows) -> None:
    seen: list[Any] = []

    @inbox.on("stripe", "*")
    def handle(event: SyncEvent, tx: SyncTransaction) -> None:
        tx.executemany(insert, [(1, "first"), (2, "second")])
        with pytest.raises(ZeroDivisionError), tx.transaction():
            tx.execute("DELETE FROM notes")
            _ = 1 / 0
        seen.append([row["note"] for row in tx.fetch("SELECT note FROM notes ORDER BY id")])
        seen.append(tx.fetchval("SELECT max(id) FROM notes"))

    await deliver(inbox, "stripe")
    (receipt,) = await drain(inbox)
    assert (receipt.last_error, seen) == (None, [["first", "second"], 2])


async def test_tx_is_closed_when_its_handler_has_ended(inbox: Inbox, insert: str) -> None:
    leaked: list[Callable[..., Any]] = []

    @inbox.on("stripe", "*")
    async def handle(event: Event, tx: AsyncTransaction) -> None:
        leaked.append(tx.execute)

    await deliver(inbox, "stripe")
    await drain(inbox)
    with pytest.raises(Exception, match="after its handler had ended"):
        await leaked[0](insert, 1, "late")
