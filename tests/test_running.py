"""The operations of an inbox as blocking calls: in scripts, next to a WSGI app, in handlers, and after the block."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oncehook import ConfigurationError, Event, Inbox, StoreUnavailable, SyncEvent
from oncehook.running import PAGE
from tests.support import ROOT
from tests.support.events import Rows
from tests.support.servers import sqlite_file
from tests.support.waiting import wait_until
from tests.support.wsgi import deliver, wsgi_inbox

pytestmark = pytest.mark.system

STATUS = "SELECT status, replays FROM webhook_receipts"


def test_operations_block_for_their_results(database: str, rows: Rows) -> None:
    inbox, handled = wsgi_inbox(database, worker=True), []

    @inbox.on("stripe", "*")
    def handle(event: SyncEvent) -> None:
        handled.append(event.id)

    with inbox.running() as running:
        assert deliver(inbox, "evt_1") == 202
        wait_until(lambda: rows(STATUS) == [("processed", 0)], "the worker of the block handles the event")
        (receipt,) = running.events(source="stripe")
        assert receipt.event_id == "evt_1"
        (rehearsal,) = running.rehearse("evt_1")
        assert rehearsal.receipt == receipt.receipt
        assert running.pause("stripe", reason="a release") is True
        assert running.replay(receipt.receipt, actor="a script").replayed.total() == 1
        assert rows(STATUS)[0][0] != "processed", "a paused source is not handled"
        assert running.resume("stripe") is True
        wait_until(lambda: rows(STATUS) == [("processed", 1)], "the event was handled again")
        assert running.prune() is not None
        running.ready()
        assert b"oncehook_received_total" in running.metrics()
        assert running.run(inbox.ready()) is None
    goes_on = inbox._runtime.is_running
    inbox.wsgi.stop()
    assert goes_on, "a request arrived, so the inbox of the server does not end with the block"
    assert not inbox._runtime.is_running and handled == ["evt_1", "evt_1", "evt_1"]


def test_errors_of_an_operation_are_raised(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    with inbox.running() as running, pytest.raises(ValueError, match="either receipts or a filter"):
        running.replay()
    with pytest.raises(StoreUnavailable, match=r"within `with inbox\.running\(\)`"):
        running.replay("evt_1")


def test_block_without_a_worker_leaves_events_to_other_processes(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite, worker=True)
    with inbox.running(worker=False):
        assert inbox._runtime.worker is None
    with inbox.running():
        assert inbox._runtime.worker is not None


def test_all_events_are_listed_page_by_page(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    with inbox.running() as running:
        for number in range(PAGE + 5):
            assert deliver(inbox, f"evt_{number}") == 202
        ids = [receipt.event_id for receipt in running.events()]
        assert len(set(ids)) == PAGE + 5 and ids[0] == f"evt_{PAGE + 4}"
        assert len(list(running.events(limit=7))) == 7


def test_block_uses_the_thread_of_a_wsgi_app_and_leaves_it_running(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    assert deliver(inbox, "evt_1") == 202
    with inbox.running() as running, inbox.running() as inner:
        assert [len(list(each.events())) for each in (running, inner)] == [1, 1]
    assert deliver(inbox, "evt_2") == 202, "the app still runs"
    inbox.wsgi.stop()


def test_request_during_a_block_keeps_the_inbox_running_after_it(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    with inbox.running():
        inbox.wsgi.start()
    assert deliver(inbox, "evt_1") == 202
    inbox.wsgi.stop()


def test_blocks_in_several_threads_share_one_loop(sqlite: str) -> None:
    inbox, counts = wsgi_inbox(sqlite), []

    def use() -> None:
        with inbox.running() as running:
            counts.append(len(list(running.events())))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [0, 0, 0, 0] and not inbox._runtime.is_running


def test_plain_handler_can_use_it_and_an_async_handler_is_told_to_await(sqlite: str) -> None:
    inbox, seen = wsgi_inbox(sqlite, worker=True), []

    @inbox.on("stripe", "invoice.*")
    def plain(event: SyncEvent) -> None:
        with inbox.running() as running:
            seen.append(len(list(running.events())))

    @inbox.on("stripe", "other.*")
    async def in_loop(event: Event) -> None:
        with pytest.raises(RuntimeError, match="await the operation instead"):
            inbox.wsgi.thread.run(inbox.ready())
        seen.append(-1)

    with inbox.running():
        assert [deliver(inbox, "evt_1"), deliver(inbox, "evt_2", "other.one")] == [202, 202]
        wait_until(lambda: len(seen) == 2, "both handlers ran")
    assert -1 in seen and max(seen) in (1, 2)


@pytest.mark.anyio
async def test_inbox_of_an_asgi_app_is_awaited_instead(sqlite: str) -> None:
    inbox = wsgi_inbox(sqlite)
    async with inbox.lifespan():
        with pytest.raises(ConfigurationError, match="already runs in another event loop"), inbox.running():
            pass


def test_start_that_fails_is_raised(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING_SECRET", raising=False)
    inbox = Inbox(sqlite, worker=False)
    inbox.source("stripe", secrets=["env:MISSING_SECRET"])
    with pytest.raises(ConfigurationError, match="MISSING_SECRET"), inbox.running():
        pass


def test_interrupt_ends_a_long_operation_and_the_script(tmp_path: Path) -> None:
    """Ctrl-C in a shell."""
    script = """
import asyncio, sys
from tests.support.wsgi import wsgi_inbox

async def wait_forever():
    try:
        print("waiting", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)

inbox = wsgi_inbox(sys.argv[1])
with inbox.running() as running:
    running.run(wait_forever())
"""
    database = sqlite_file(tmp_path / "inbox.db")
    process = subprocess.Popen(
        [sys.executable, "-c", script, database],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert output == "cancelled\n" and errors.rstrip().endswith("KeyboardInterrupt")
