"""The state of the fast path changes with whatever can make a remembered receipt vanish."""

import asyncio

import pytest
from msgspec.structs import replace

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import Postgres, private_postgres
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_state_stays_the_same_while_receipts_are_added(store: Store) -> None:
    before = await store.fast_path.state()
    (claimed,) = await store.claims.insert([make_claim()])
    after = await store.fast_path.state()
    assert replace(after, receipts=before.receipts) == before
    assert after.receipts >= claimed.receipt, "no receipt has a greater number than the last that was drawn"


async def test_deleting_a_receipt_by_any_statement_raises_the_number_of_deleted_receipts(
    store: Store, rows: Rows
) -> None:
    claims = [make_claim(f"evt_{n}") for n in range(3)]
    numbers = [claimed.receipt for claimed in await store.claims.insert(claims)]
    before = await store.fast_path.state()
    rows(f"DELETE FROM webhook_receipts WHERE id = {numbers[1]} RETURNING id")
    after = await store.fast_path.state()
    assert (before.deleted_up_to, after.deleted_up_to) == (0, numbers[1])
    rows(f"DELETE FROM webhook_receipts WHERE id = {numbers[0]} RETURNING id")
    assert (await store.fast_path.state()).deleted_up_to == numbers[1], "the number never decreases"
    assert after.namespace == before.namespace


async def test_deletion_that_is_rolled_back_leaves_the_state(store: Store) -> None:
    (claimed,) = await store.claims.insert([make_claim()])

    async def work(run: object) -> None:
        await run("prune_receipts", {"receipts": store.dialect.array([claimed.receipt])})  # type: ignore[operator]
        raise ZeroDivisionError

    before = await store.fast_path.state()
    with pytest.raises(ZeroDivisionError):
        await store.database.executor.transaction(work)
    assert await store.fast_path.state() == before


async def test_renewing_makes_another_namespace_for_every_process(store: Store, database: str) -> None:
    other = make_store(Settings(database=database))
    await other.open()
    before = await other.fast_path.state()
    await store.identities.renew()
    assert (await other.fast_path.state()).namespace != before.namespace
    assert (await other.fast_path.state()).secret == before.secret
    await other.close()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_deleting_without_ordinary_triggers_raises_the_number_too(store: Store, rows: Rows) -> None:
    (claimed,) = await store.claims.insert([make_claim()])
    rows("SET session_replication_role = replica; DELETE FROM webhook_receipts; RESET ALL; SELECT 1")
    assert (await store.fast_path.state()).deleted_up_to == claimed.receipt


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_truncating_the_receipts_makes_another_namespace(store: Store, rows: Rows) -> None:
    before = await store.fast_path.state()
    rows("TRUNCATE webhook_receipts CASCADE; SELECT 1")
    assert (await store.fast_path.state()).namespace != before.namespace


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_copy_of_a_database_has_another_namespace(store: Store, postgres: Postgres, database: str) -> None:
    namespaces = {(await store.fast_path.state()).namespace}
    await store.close()
    name = database.rpartition("/")[2]
    postgres.sql(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
    for address in (database, f"{database}_copy"):
        other = make_store(Settings(database=address))
        await other.open()
        namespaces.add((await other.fast_path.state()).namespace)
        await other.close()
    assert len(namespaces) == 2, "the database keeps its namespace, and the copy has another"
    postgres.drop_later(f"{database}_copy")


@pytest.mark.torture
async def test_restart_of_postgresql_makes_another_namespace() -> None:
    with private_postgres() as server:
        store = make_store(Settings(database=server.database()))
        await store.open()
        before = await store.fast_path.state()
        await asyncio.to_thread(server.stop, kill=True)
        await asyncio.to_thread(server.start)
        await eventually(lambda: _namespace(store), "the store connects again")
        assert await _namespace(store) != before.namespace
        await store.close()


async def _namespace(store: Store) -> bytes | None:
    try:
        return (await store.fast_path.state()).namespace
    except StoreUnavailable:
        return None
