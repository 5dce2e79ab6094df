"""The identity of a database: it changes whenever commits may be lost, and processes notice that."""

from collections.abc import AsyncIterator

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.store import make_store
from oncehook.store.identity import CONFIRMED_SECONDS, Identity, IdentityMonitor
from oncehook.store.store import Store
from tests.support.clocks import ManualClock
from tests.support.events import Rows, make_claim

pytestmark = pytest.mark.anyio


@pytest.fixture
async def other(store: Store, database: str) -> AsyncIterator[Store]:
    """The store of another process on the same database."""
    other = make_store(Settings(database=database))
    await other.open()
    yield other
    await other.close()


async def test_all_processes_read_the_same_name(store: Store, other: Store) -> None:
    assert await store.identity() == await other.identity()
    await other.claims.insert([make_claim()])
    assert (await store.identity()).name == (await other.identity()).name
    assert (await store.identity()).receipts > 0


async def test_digest_depends_only_on_the_name() -> None:
    assert Identity("a", 1).digest == Identity("a", 2).digest != Identity("b", 1).digest
    assert len(Identity("a", 1).digest) == 32


async def test_listener_is_called_for_a_change_and_not_for_the_first_identity(store: Store, other: Store) -> None:
    changes: list[Identity] = []
    certain: list[Identity | None] = []
    store.identities.on_identity_change(changes.append)
    store.identities.on_identity_change(lambda _: certain.append(store.identities.current))
    await store.identities.start()
    first = await store.identities.check()
    assert changes == [] and store.identities.current == first
    renewed = await other.identities.renew()
    assert await store.identities.check() == renewed != first
    assert changes == [renewed] and store.identities.current == renewed
    assert certain == [None], "a listener must not see the new identity before all listeners have forgotten"


async def test_older_data_under_the_same_name_replaces_the_epoch(
    store: Store, other: Store, database: str, rows: Rows
) -> None:
    """As after a snapshot of the disk, or a restore of the rows alone."""
    changes: list[Identity] = []
    store.identities.on_identity_change(changes.append)
    await store.claims.insert([make_claim()])
    before = await store.identities.check()
    rows(
        "SELECT setval('webhook_receipt_ids', 1)"
        if database.startswith("postgresql")
        else "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'webhook_receipts'"
    )
    after = await store.identities.check()
    assert after.name != before.name and changes == [after]
    assert (await other.identity()).name == after.name, "the other processes must see it too"
    assert await store.identities.check() == after and changes == [after]


async def test_identity_is_uncertain_after_a_lost_connection_until_the_next_check(store: Store) -> None:
    identity = await store.identities.check()
    store.identities.forget()
    assert store.identities.current is None
    await store.identities.check()
    assert store.identities.current == identity


async def test_answer_that_was_requested_before_the_connection_was_lost_is_not_trusted(store: Store) -> None:
    async def read() -> Identity:
        store.identities.forget()
        return await store.identity()

    await store.identities.observe(read)
    assert store.identities.current is None


async def test_identity_is_uncertain_if_it_was_not_confirmed_recently(store: Store) -> None:
    clock = ManualClock()
    monitor = IdentityMonitor(store.database.executor, clock)
    identity = await monitor.check()
    clock.advance(CONFIRMED_SECONDS - 0.1)
    assert monitor.current == identity
    clock.advance(0.1)
    assert monitor.current is None


async def test_identity_is_uncertain_while_it_cannot_be_read(store: Store, rows: Rows) -> None:
    await store.identities.check()
    rows("ALTER TABLE webhook_identity RENAME TO webhook_identity_away")
    with pytest.raises(StoreUnavailable):
        await store.identities.check()
    assert store.identities.current is None


async def test_start_replaces_the_epoch_only_on_sqlite(store: Store, other: Store, database: str) -> None:
    """Nothing else in a SQLite file shows that it was copied from a backup while no process ran."""
    first = await store.identities.start()
    second = await other.identities.start()
    assert (first.name == second.name) is database.startswith("postgresql")
