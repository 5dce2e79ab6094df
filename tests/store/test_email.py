"""Queries and transactions of the email tables, on every store."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


class Address(msgspec.Struct):
    address: str


async def suppress(transaction: Transaction, address: str) -> int:
    row = {"address": address, "since": "2026-11-15T12:00:00Z", "reason": "manual", "source": "", "event_key": ""}
    statement = [row | {"message_id": "", "added_at": None, "added_reason": None}]
    statement[0] |= {"removed_at": None, "note": None, "actor": "jane"}
    rows = await transaction.run_query(lambda sql: sql["email_write_suppressions"], json.dumps(statement))
    return len(rows)


async def test_transaction_commits_when_its_work_returns(store: Store, rows: Rows) -> None:
    written = await store.email.transact(lambda transaction: suppress(transaction, "jane@example.com"))
    assert written == 1
    assert rows("SELECT address FROM webhook_suppressions") == [("jane@example.com",)]


async def test_transaction_is_rolled_back_when_its_work_raises(store: Store, rows: Rows) -> None:
    async def fail(transaction: Transaction) -> None:
        await suppress(transaction, "jane@example.com")
        raise ValueError("after the write")

    with pytest.raises(ValueError, match="after the write"):
        await store.email.transact(fail)
    assert rows("SELECT * FROM webhook_suppressions") == []
    async with asyncio.timeout(5):  # the next writer of this row does not wait for the transaction that failed
        await store.email.transact(lambda transaction: suppress(transaction, "jane@example.com"))
    assert rows("SELECT address FROM webhook_suppressions") == [("jane@example.com",)]


async def test_transaction_that_is_never_used_opens_nothing(store: Store) -> None:
    async def do_nothing(transaction: Transaction) -> bool:
        return transaction.used

    assert await store.email.transact(do_nothing) is False


async def test_query_returns_rows_of_the_requested_type(store: Store) -> None:
    for address in ("b@example.com", "a@example.com"):
        await store.email.transact(lambda transaction, to=address: suppress(transaction, to))  # type: ignore[misc]
    rows = await store.email.query("email_addresses", {"after": "", "limit": 10}, Address)
    assert rows == [Address("a@example.com"), Address("b@example.com")]
    after = await store.email.query("email_addresses", {"after": "a@example.com", "limit": 10}, Address)
    assert after == [Address("b@example.com")]


async def test_error_of_the_database_is_unavailable(store: Store, rows: Rows) -> None:
    rows("DROP TABLE webhook_suppressions")

    async def work(transaction: Transaction) -> Any:
        return await suppress(transaction, "jane@example.com")

    with pytest.raises(StoreUnavailable, match="webhook_suppressions"):
        await store.email.transact(work)
