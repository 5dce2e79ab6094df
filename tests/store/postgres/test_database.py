"""The PostgreSQL database as a whole: opening, closing and checking it."""

import psycopg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store import make_store
from oncehook.store.postgres.database import PostgresDatabase
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.stores import postgres_of

pytestmark = pytest.mark.anyio

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'oncehook%'"
)


async def test_close_ends_all_sessions(store: Store, rows: Rows) -> None:
    transaction = store.transaction()
    await transaction.connection()
    await transaction.rollback()
    assert rows(SESSIONS)[0][0] > 0
    await store.close()
    assert rows(SESSIONS) == [(0,)]


async def test_transactions_of_handlers_need_no_lock(store: Store) -> None:
    assert store.database.handler_lock is None


def test_transaction_of_a_closed_store_is_unavailable() -> None:
    store = make_store(Settings(database="postgresql://localhost/unused"))
    with pytest.raises(StoreUnavailable, match="not open"):
        store.transaction()


async def test_ping_waits_for_the_locks_of_a_claim(store: Store, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("LOCK TABLE webhook_receipts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable):
            await store.ping()
    await store.ping()


async def test_each_transaction_uses_a_connection_of_handlers(store: Store) -> None:
    first, second = store.transaction(), store.transaction()
    assert await first.connection() is not await second.connection()
    await first.rollback()
    await second.rollback()
    assert isinstance(postgres_of(store), PostgresDatabase)
