"""Claims, leases and settled attempts on a store, without a worker."""

import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

from oncehook.config.settings import Settings
from oncehook.model.claim import Claim
from oncehook.model.lease import Leased, Settled
from oncehook.model.rows import StoredAttempt
from oncehook.model.states import State
from oncehook.store import make_store
from oncehook.store.postgres.database import PostgresDatabase
from oncehook.store.postgres.handler import HandlerConnections
from oncehook.store.sqlite.database import SqliteDatabase
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import run_sql
from tests.support.waiting import eventually


@asynccontextmanager
async def open_store(database: str, **settings: Any) -> AsyncIterator[Store]:
    """A store on this database, open inside the block."""
    store = make_store(Settings(database=database, **settings))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def missing_table(rows: Rows, name: str) -> Iterator[None]:
    """A real error of the database: inside the block, the table has another name."""
    rows(f"ALTER TABLE {name} RENAME TO {name}_away")
    try:
        yield
    finally:
        rows(f"ALTER TABLE {name}_away RENAME TO {name}")


def postgres_of(store: Store) -> PostgresDatabase:
    """The PostgreSQL part of a store."""
    assert isinstance(store.database, PostgresDatabase)
    return store.database


def handler_connections(store: Store) -> HandlerConnections:
    """The connections of handlers on PostgreSQL."""
    connections = postgres_of(store).handler_connections
    assert connections is not None, "the store must be open"
    return connections


def sqlite_of(store: Store) -> SqliteDatabase:
    """The SQLite part of a store."""
    assert isinstance(store.database, SqliteDatabase)
    return store.database


async def claim_one(store: Store, claim: Claim) -> int:
    """Claim a new event, and return its receipt."""
    (claimed,) = await store.claims.insert([claim])
    assert claimed.fresh, "the event must be new"
    return claimed.receipt


async def claim_and_lease(store: Store, count: int = 1, seconds: float = 60.0) -> list[Leased]:
    """Claim `evt_0`, `evt_1` and so on, and lease them all for the worker `first`."""
    await store.claims.insert([make_claim(f"evt_{number}") for number in range(count)])
    return await store.leases.take(count, seconds, "first")


async def lose_lease(store: Store, leased: Leased) -> Leased:
    """Take a receipt from its worker, as after an expired lease, and return the lease of the worker `second`."""
    crashed = Settled(leased.receipt, leased.lease, State.RETRYING, "crashed", after=0.0, crashed=True)
    assert await store.leases.settle([crashed]) == {leased.receipt}
    again: list[Leased] = []

    async def lease_again() -> bool:
        again.extend(await store.leases.take(1, 60, "second", rescued=True))
        return bool(again)

    await eventually(lease_again, "the receipt is due at the next tick of the database's clock")
    assert again[0].receipt == leased.receipt and again[0].lease > leased.lease
    return again[0]


def processed(leased: Leased) -> Settled:
    """The settled attempt of a handler that succeeded."""
    return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed", handler="h", version="v", seconds=0.1)


async def settle(store: Store, leased: Sequence[Leased], status: State = State.PROCESSED, **more: Any) -> None:
    """Settle these receipts. Fails if a lease was lost."""
    attempts = [Settled(receipt.receipt, receipt.lease, status, status.value, **more) for receipt in leased]
    assert await store.leases.settle(attempts) == {receipt.receipt for receipt in leased}


def seconds_taken(attempt: StoredAttempt) -> float:
    """How long an attempt took, by its recorded times."""
    assert attempt.started_at is not None and attempt.ended_at is not None, "the attempt must have begun and ended"
    return (datetime.fromisoformat(attempt.ended_at) - datetime.fromisoformat(attempt.started_at)).total_seconds()


def statuses(database: str) -> list[str]:
    """The status of each receipt, in the order of event ids."""
    return [row[0] for row in run_sql(database, "SELECT status FROM webhook_receipts ORDER BY event_id")]


def event_ids(leased: Sequence[Leased]) -> list[str]:
    return [receipt.event_id for receipt in leased]


def claims_with_key(key: str, count: int, start: int = 0, **changes: Any) -> list[Claim]:
    """Claims of one serial key, numbered in the order of arrival."""
    numbers = range(start, start + count)
    return [make_claim(f"{key}-{n}", object_id=key, serial_key=key, **changes) for n in numbers]


def interleave(*groups: Sequence[Claim]) -> list[Claim]:
    """The first claim of each group, then the second of each, and so on."""
    mixed = [(position, number, claim) for number, group in enumerate(groups) for position, claim in enumerate(group)]
    return [claim for _, _, claim in sorted(mixed, key=lambda entry: entry[:2])]


def assert_implements(part: object, protocol: type[Any]) -> None:
    """Fail unless the part has every method of the protocol, with the same parameters."""
    methods = {name: member for name, member in vars(protocol).items() if inspect.isfunction(member) and name[0] != "_"}
    for name, declared in methods.items():
        implemented = getattr(part, name, None)
        assert callable(implemented), f"{type(part).__name__} must have {protocol.__name__}.{name}"
        expected = list(inspect.signature(declared).parameters)[1:]
        assert list(inspect.signature(implemented).parameters) == expected, f"the parameters of {name} must match"
