"""`oncehook worker` as a process: handling events, and stopping."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from oncehook import Inbox
from oncehook.model.states import State
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim, stripe_body, stripe_headers
from tests.support.serve import process, worker_process
from tests.support.waiting import wait_until
from tests.support.work import claim_and_settle, receipt_states


def test_a_worker_handles_waiting_events_and_stops_on_sigterm(
    hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    claim_and_settle(make_inbox, *(make_claim(f"evt_{n:02d}") for n in range(30)))
    with worker_process(hooks.parent, "--concurrency", "4") as running:
        wait_until(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(30,)])
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert rows("SELECT count(*), count(DISTINCT event_id) FROM ledger") == [(30, 30)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE lease_until IS NOT NULL") == [(0,)]
    assert rows("SELECT count(*) FROM webhook_attempts WHERE outcome = 'processed'") == [(30,)]


SLOW = """
import asyncio
from pathlib import Path

@inbox.on("stripe", "slow")
async def slow(event: Event, tx) -> None:
    Path(event.id).touch()
    await asyncio.to_thread(Path("go").read_bytes)  # a named pipe: blocks until the test writes to it
    await tx.execute(INSERT, event.id, "slow")
"""


def test_on_sigterm_a_worker_finishes_running_handlers_and_releases_other_receipts(
    hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    folder = hooks.parent
    with (folder / "hooks.py").open("a") as file:
        file.write(SLOW)
    os.mkfifo(folder / "go")
    claim_and_settle(make_inbox, *(make_claim(f"evt_{n}", type="slow") for n in range(4)))
    with worker_process(folder, "--concurrency", "1") as running:
        wait_until(lambda: any(folder.glob("evt_*")))
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'received'") == [(3,)])
        (folder / "go").write_bytes(b"")
        assert running.wait(20) == 0
    statuses = rows("SELECT status, attempts, count(*) FROM webhook_receipts GROUP BY status, attempts ORDER BY status")
    assert statuses == [("processed", 1, 1), ("received", 0, 3)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE lease_until IS NOT NULL") == [(0,)]
    assert rows("SELECT count(*) FROM ledger") == [(1,)]


def test_a_running_worker_handles_replayed_events(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    (receipt,) = claim_and_settle(
        make_inbox, make_claim("evt_1"), status=State.FAILED, outcome="failed", error="E: broken", version="v1"
    )
    with worker_process(hooks.parent) as running:
        assert run("replay", str(receipt)).code == 0
        wait_until(lambda: receipt_states(rows) == {"evt_1": ("processed", 1)})
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
    assert rows("SELECT event_id FROM ledger") == [("evt_1",)]


@pytest.mark.sampled(1)
def test_a_worker_handles_events_that_another_process_accepts(hooks: Path, rows: Rows) -> None:
    folder = hooks.parent
    (folder / "receiver.py").write_text("from oncehook import Inbox\ninbox = Inbox(worker=False)\n")
    expected = [(f"evt_{n}",) for n in range(5)]
    with process(hooks, "receiver:inbox") as receiver, worker_process(folder) as running:
        for (event_id,) in expected:
            body = stripe_body(event_id)
            address = f"http://127.0.0.1:{receiver.port}/webhooks/stripe"
            assert httpx.post(address, content=body, headers=stripe_headers(body), verify=False).status_code == 202
        wait_until(lambda: rows("SELECT event_id FROM ledger ORDER BY event_id") == expected)
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert receiver.end() == 0
    assert {status for status, _ in receipt_states(rows).values()} == {"processed"}
    assert rows("SELECT count(*) FROM webhook_attempts") == [(5,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_worker_without_handlers_does_not_start(run: Run, hooks: Path) -> None:
    for arguments in ([], ["empty:inbox"]):
        Path("empty.py").write_text("from oncehook import Inbox\ninbox = Inbox()\n")
        ran = run("worker", *arguments)
        assert ran.code == 2 and "the worker has no handlers" in ran.error
    assert run("worker", "nowhere:inbox").code == 2
