"""Statements on PostgreSQL connections."""

import asyncpg
import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.postgres.executor import fetch, run_on
from oncehook.store.store import Store
from tests.support.stores import postgres_of

pytestmark = pytest.mark.anyio


async def test_fetch_binds_parameters_by_name(store: Store) -> None:
    async with postgres_of(store).pool.connection() as connection:
        rows = await fetch(connection, "renew_worker", {"worker": "unknown"})
    assert rows == []


async def test_statements_of_run_on_share_the_transaction_of_their_connection(store: Store) -> None:
    entry = {"actor": "jane", "action": "test", "detail": "{}"}
    async with postgres_of(store).pool.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        run = run_on(connection)
        await run("audit", entry)
        assert len(await run("audit_entries", {"limit": 10})) == 1
        await transaction.rollback()
    assert await store.operations.audited(before=None, limit=10) == []


async def test_missing_parameter_is_an_error_before_a_statement_is_sent(store: Store) -> None:
    async with postgres_of(store).pool.connection() as connection:
        with pytest.raises(KeyError, match="worker"):
            await fetch(connection, "renew_worker", {})


def test_only_errors_of_the_driver_become_unavailable(closed_store: Store) -> None:
    as_unavailable = closed_store.database.executor.as_unavailable
    assert as_unavailable(KeyError("a")) is None
    if not closed_store.dialect.single_writer:
        error = as_unavailable(asyncpg.UndefinedTableError("relation x does not exist"))
        assert isinstance(error, StoreUnavailable) and str(error) == "PostgreSQL: relation x does not exist"
