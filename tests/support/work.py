"""Claims, settled receipts, quick retries, and conditions on rows."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from oncehook import Event, Inbox, Retry
from oncehook.model.lease import Settled
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import run_sql

QUICK = Retry(attempts=3, first=0.01, most=0.02)
RETRY_WITHIN_2H = Retry(first=7200.0, most=7200.0)
"""A policy whose retries do not happen during a test, but are due if the test lets two hours pass."""

STATES = "SELECT event_id, status, attempts, outcome, last_error FROM webhook_receipts ORDER BY id"
HISTORY = "SELECT number, outcome, error FROM webhook_attempts ORDER BY id"


async def claim(target: Inbox | Store, *ids: str, **changes: Any) -> list[int]:
    """Insert a receipt of a Stripe source for each event id. Returns their numbers in the order of `ids`."""
    store = target._runtime.store if isinstance(target, Inbox) else target
    claims = [make_claim(event_id, **changes) for event_id in sorted(ids)]
    outcomes = await store.claims.insert(claims)
    receipts = {claim.event_id: outcome.receipt for claim, outcome in zip(claims, outcomes, strict=True)}
    return [receipts[event_id] for event_id in ids]


def receipts_are(database: str | Rows, status: str, count: int) -> Callable[[], bool]:
    """A condition: exactly `count` receipts have this status. The database is an address or the fixture `rows`."""
    return _returns(database, f"SELECT count(*) FROM webhook_receipts WHERE status = '{status}'", count)


def effects_are(database: str | Rows, status: str, count: int) -> Callable[[], bool]:
    """A condition: exactly `count` effects have this status, not counting the keys of `once_per`."""
    sql = f"SELECT count(*) FROM webhook_effects WHERE status = '{status}' AND kind <> 'once'"
    return _returns(database, sql, count)


def _returns(database: str | Rows, sql: str, count: int) -> Callable[[], bool]:
    rows = partial(run_sql, database) if isinstance(database, str) else database
    return lambda: rows(sql) == [(count,)]


class FailsAtFirst:
    """Wraps an async method: it raises an unexpected error for the first `times` calls and then works.

    The error stands for a bug of ours, which no fault of a database or network can cause.
    """

    def __init__(self, method: Callable[..., Any], times: int = 2) -> None:
        self.method = method
        self.times = times

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise LookupError("a bug")
        return await self.method(*args, **kwargs)


def all_rows(rows: Rows) -> list[Any]:
    """Return every row that a replay or a handler could change."""
    tables = ("webhook_receipts", "webhook_attempts", "webhook_audit", "webhook_payloads", "ledger")
    return [rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]


def claim_and_settle(make_inbox: Callable[..., Inbox], *claims: Any, **settled: Any) -> list[int]:
    """Claim events in a stopped inbox. With keywords, also lease and settle them with these facts."""
    return fill(make_inbox, (claims, settled))


def fill(make_inbox: Callable[..., Inbox], *steps: tuple[Sequence[Any], dict[str, Any]]) -> list[int]:
    """Claim the events of each step in turn in one inbox, and settle them with the facts of the step, if any."""

    async def run() -> list[int]:
        receipts: list[int] = []
        inbox = make_inbox(worker=False)
        async with inbox.lifespan():
            store = inbox._runtime.store
            for claims, settled in steps:
                receipts += [row.receipt for row in (await store.claims.insert(claims) if claims else [])]
                if settled:
                    leased = await store.leases.take(1000, 30, "worker-1")
                    await store.leases.settle([Settled(row.receipt, row.lease, **settled) for row in leased])
        return receipts

    return asyncio.run(run())


def receipt_states(rows: Rows) -> dict[str, tuple[str, int]]:
    """The status and the number of replays of each receipt, by event id."""
    receipts = rows("SELECT event_id, status, replays FROM webhook_receipts ORDER BY id")
    return {event_id: (status, replays) for event_id, status, replays in receipts}


def unhandled_events(rows: Rows) -> list[str]:
    """The ids of the events that wait for a handler."""
    waiting = rows("SELECT event_id FROM webhook_receipts WHERE unhandled_at IS NOT NULL ORDER BY event_id")
    return [event_id for (event_id,) in waiting]


def fail_first_attempts(inbox: Inbox, times: int, **retry: Any) -> list[int]:
    """Register a Stripe handler that fails in its first attempts. Returns the numbers of its attempts."""
    attempts: list[int] = []

    @inbox.on("stripe", "*", retry=Retry(**retry))
    async def handle(event: Event) -> None:
        attempts.append(event.attempt)
        if event.attempt <= times:
            raise ConnectionError("the bank is closed")

    return attempts
