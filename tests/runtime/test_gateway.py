"""The inbox in a thread of each process: its start with the first request, errors, and a stop."""

import threading
from typing import Any

import pytest

from oncehook import ConfigurationError, Inbox, SyncEvent
from tests.support.events import Rows
from tests.support.waiting import wait_until
from tests.support.wsgi import deliver, wsgi_inbox

STATUS = "SELECT event_id, status FROM webhook_receipts ORDER BY event_id"


def loop_threads() -> int:
    return sum(thread.name == "oncehook-loop" for thread in threading.enumerate())


def test_first_request_starts_the_inbox_and_a_stop_ends_its_thread(database: str, rows: Rows) -> None:
    before = loop_threads()
    inbox = wsgi_inbox(database)
    assert loop_threads() == before, "the import starts nothing"
    assert [deliver(inbox, "evt_1"), deliver(inbox, "evt_1"), deliver(inbox, "evt_2")] == [202, 200, 202]
    assert loop_threads() == before + 1
    inbox.wsgi.stop()
    assert loop_threads() == before and not inbox._runtime.is_running
    assert deliver(inbox, "evt_3") == 503, "a stopped inbox is not started by a late request"
    inbox.wsgi.start()
    assert deliver(inbox, "evt_3") == 202
    inbox.wsgi.stop()
    inbox.wsgi.stop()
    assert len(rows(STATUS)) == 3


def test_request_during_a_block_without_a_worker_gets_the_worker_after_the_block(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite, worker=True)
    handled = threading.Event()

    @inbox.on("stripe", "*")
    def handle(event: SyncEvent) -> None:
        handled.set()

    with inbox.running(worker=False) as running:
        assert deliver(inbox, "evt_1") == 202
        assert len(list(running.events())) == 1
        assert not handled.is_set()
    assert handled.wait(30), "the worker of the settings handles the event"
    inbox.wsgi.stop()


def test_request_during_a_stop_gets_503_without_waiting_for_its_end(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite, worker=True, stop_grace="60s")
    running, gate = threading.Event(), threading.Event()

    @inbox.on("stripe", "*")
    def handle(event: SyncEvent) -> None:
        running.set()
        gate.wait(30)

    assert deliver(inbox, "evt_1") == 202
    assert running.wait(30)
    stopping = threading.Thread(target=inbox.wsgi.stop)
    stopping.start()
    try:
        wait_until(lambda: inbox.wsgi.thread.handover is None, "the stop has begun")
        assert deliver(inbox, "evt_2") == 503
        assert stopping.is_alive(), "the request did not wait for the handler"
    finally:
        gate.set()
        stopping.join()


def test_threads_stay_the_same_over_many_requests_at_the_same_time(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    statuses: list[int] = []

    def send(sender: int) -> None:
        statuses.extend(deliver(inbox, f"evt_{sender % 2}_{number}") for number in range(50))

    assert deliver(inbox, "evt_0_0") == 202
    before = threading.active_count()
    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    assert threading.active_count() < before + 20, "200 requests left threads"  # the pools of a loop may have grown
    assert (sorted(set(statuses)), len(statuses)) == ([200, 202], 200)
    assert statuses.count(202) == 99, "each event is accepted once"
    inbox.wsgi.stop()


def test_start_that_fails_gets_503_and_a_log_line_and_is_tried_again_later(
    sqlite: str, emitted: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MISSING_SECRET", raising=False)
    inbox = Inbox(sqlite, worker=False)
    inbox.source("stripe", secrets=["env:MISSING_SECRET"])
    with pytest.raises(ConfigurationError, match="MISSING_SECRET"):
        inbox.wsgi.start()
    assert deliver(inbox, "evt_1") == deliver(inbox, "evt_1") == 503
    (failure,) = [fields["detail"] for line, fields in emitted if line == "start_failed"]
    assert "MISSING_SECRET" in failure
    monkeypatch.setenv("MISSING_SECRET", "whsec_test")
    monkeypatch.setattr("oncehook.runtime.loop_thread.RETRY_SECONDS", 0.0)
    assert deliver(inbox, "evt_1") == 202
    inbox.wsgi.stop()


@pytest.mark.anyio
async def test_lifespan_does_not_start_an_inbox_that_runs_in_its_thread(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    inbox.wsgi.start()
    with pytest.raises(ConfigurationError, match="already runs in another event loop"):
        await inbox.start()
    assert deliver(inbox, "evt_1") == 202
    inbox.wsgi.stop()


def test_request_does_not_wait_long_for_a_start_by_another_thread(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = wsgi_inbox(sqlite)
    monkeypatch.setattr("oncehook.runtime.loop_thread.START_SECONDS", 0.05)
    with inbox.wsgi.thread._transition:  # as a start that waits for its database
        assert deliver(inbox, "evt_1") == 503
    assert deliver(inbox, "evt_1") == 202
    inbox.wsgi.stop()


@pytest.mark.anyio
async def test_inbox_that_runs_in_another_loop_is_not_started_twice(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    async with inbox.lifespan():
        with pytest.raises(ConfigurationError, match="already runs in another event loop"):
            inbox.wsgi.start()
