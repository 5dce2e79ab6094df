"""The heartbeat extends leases from its own thread, whatever the event loop or the database does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.model.lease import LeaseKey
from oncehook.worker.heartbeat import Heartbeat
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.waiting import eventually, wait_until
from tests.support.work import claim, receipts_are

pytestmark = pytest.mark.anyio


STATES = "SELECT event_id, status, attempts, last_error FROM webhook_receipts ORDER BY event_id"


HEARTBEATS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'oncehook heartbeat' AND datname = current_database()"
)
LEASED_UNTIL = "SELECT lease_until FROM webhook_receipts"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with a lease of two seconds."""
    inbox = make_inbox(worker=False, lease="2s", concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


def test_the_heartbeat_survives_an_unexpected_error_of_the_store(emitted: list[tuple[str, dict[str, Any]]]) -> None:
    class Connection:
        extensions = 0

        def extend(self, held: Any, seconds: float) -> None:
            self.extensions += 1
            if self.extensions < 3:
                raise LookupError("a bug")

        def release(self, held: Any) -> None: ...

        def close(self) -> None: ...

    connection = Connection()
    heartbeat = Heartbeat(connection, 0.06)
    heartbeat.hold((1, 1))
    heartbeat.start()
    wait_until(lambda: connection.extensions >= 4, "the heartbeat extends the lease after two errors")
    heartbeat.stop()
    assert emitted == [("heartbeat_failed", {"leases": 1, "detail": "LookupError"})] * 2


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_lease_survives_a_lost_heartbeat_connection(
    inbox: Inbox, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    @inbox.on("stripe", "*")
    async def slow(event: Event) -> None:
        await eventually(lambda: rows(HEARTBEATS), "the heartbeat connects")
        (before,) = rows(HEARTBEATS)
        rows(f"SELECT pg_terminate_backend({before[0]})")
        await eventually(lambda: rows(HEARTBEATS) not in ([], [before]), "the heartbeat connects again")
        extended = rows(LEASED_UNTIL)
        await eventually(lambda: rows(LEASED_UNTIL) > extended, "the new connection extends the lease")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows(STATES) == [("evt_1", "processed", 1, None)]


class RecordingConnection:
    """A heartbeat connection that records its calls."""

    def __init__(self) -> None:
        self.extended: list[list[LeaseKey]] = []
        self.released: list[LeaseKey] = []

    def extend(self, held: Sequence[LeaseKey], seconds: float) -> None:
        self.extended.append(list(held))

    def release(self, held: Sequence[LeaseKey]) -> None:
        self.released += held

    def close(self) -> None: ...


def test_a_lease_is_extended_only_until_the_timeout_of_its_handler() -> None:
    clock, connection = ManualClock(), RecordingConnection()
    heartbeat = Heartbeat(connection, 0.03, clock)
    heartbeat.hold((1, 1), 5.0)
    heartbeat.hold((2, 1))
    heartbeat.start()
    wait_until(lambda: connection.extended, "the heartbeat extends the leases")
    assert connection.extended[0] == [(1, 1), (2, 1)]
    clock.advance(5.0)
    wait_until(lambda: connection.extended[-1] == [(2, 1)], "the lease of the running handler is not extended")
    heartbeat.stop()


def test_a_dropped_lease_is_not_extended() -> None:
    heartbeat = Heartbeat(RecordingConnection(), 30.0)
    heartbeat.hold((1, 1))
    heartbeat.hold((2, 1))
    heartbeat.drop((1, 1))
    assert heartbeat.receipts == [2]


async def test_unstarted_receipts_are_released_while_the_event_loop_is_blocked() -> None:
    connection = RecordingConnection()
    heartbeat = Heartbeat(connection, 0.3)
    heartbeat.stalled = 0.1
    heartbeat.hold((1, 1), 60.0)
    heartbeat.hold((2, 1))
    heartbeat.start()
    wait_until(lambda: connection.released, "the heartbeat releases receipts")  # blocks the event loop
    assert connection.released == [(2, 1)], "the receipt whose handler runs must keep its lease"
    assert heartbeat.is_released((2, 1)) and not heartbeat.hold((2, 1))
    await asyncio.to_thread(heartbeat.stop)
