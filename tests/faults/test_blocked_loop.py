"""A handler blocks the event loop of its worker: other workers handle the receipts that wait behind it."""

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.events import STRIPE_SECRET, make_claim
from tests.support.serve import ONCEHOOK
from tests.support.servers import Postgres, run_sql
from tests.support.waiting import wait_until

HOOKS = """
import os
import threading
from pathlib import Path

from oncehook import Inbox
from oncehook.worker import heartbeat
from oncehook.cli import shutdown

heartbeat.STALLED, shutdown.WATCHDOG_MARGIN = 1.0, 1.0
inbox = Inbox({database!r}, lease="1s", poll="100ms", concurrency=4, stop_grace="500ms", migrate="never")
inbox.source("stripe", secrets=[{secret!r}])


@inbox.on("stripe", "*", timeout=3)
async def write(event, tx):
    with open("starts", "a") as starts:
        starts.write(event.id + "\\n")
    if event.id == "evt_0":
        Path("blocked").touch()
        threading.Event().wait(float(os.environ.get("BLOCK", "0")))
    await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", event.id)
"""

FINISHED = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed' AND event_id <> 'evt_0'"


@contextmanager
def worker(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(ONCEHOOK), "worker", "hooks:inbox"]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and "Oncehook worker" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def database(postgres: Postgres, tmp_path: Path) -> str:
    """Twelve events, more than a worker starts at once, and the ledger table of their handler."""
    address = postgres.database(migrated=True)

    async def claim() -> None:
        store = make_store(Settings(database=address))
        await store.open()
        await store.claims.insert([make_claim(f"evt_{n}", object_id=f"in_{n}") for n in range(12)])
        await store.close()

    asyncio.run(claim())
    run_sql(address, "CREATE TABLE ledger (event_id TEXT)")
    (tmp_path / "hooks.py").write_text(HOOKS.format(database=address, secret=STRIPE_SECRET))
    return address


def test_receipts_behind_a_handler_that_blocks_the_loop_are_handled_by_another_worker(
    tmp_path: Path, database: str
) -> None:
    with worker(tmp_path, BLOCK="600") as blocked:
        wait_until((tmp_path / "blocked").exists)
        with worker(tmp_path):
            wait_until(lambda: run_sql(database, FINISHED) == [(11,)])
        others = run_sql(database, "SELECT DISTINCT attempts, crashes FROM webhook_receipts WHERE event_id <> 'evt_0'")
        assert others == [(1, 0)], "a receipt that was not started has used no attempt, and none of it crashed"
        blocked.terminate()
        assert blocked.wait(20) == 1, "SIGTERM ends a process whose loop is blocked"


def test_worker_with_a_blocked_loop_does_not_start_receipts_that_it_released(tmp_path: Path, database: str) -> None:
    with worker(tmp_path, BLOCK="2.5") as blocked:
        wait_until((tmp_path / "blocked").exists)
        with worker(tmp_path):
            wait_until(lambda: run_sql(database, "SELECT count(*) FROM ledger") == [(12,)])
        blocked.terminate()
        assert blocked.wait(20) == 0
    starts = Counter((tmp_path / "starts").read_text().split())
    assert starts == {f"evt_{n}": 1 for n in range(12)}
    assert run_sql(database, "SELECT DISTINCT status, attempts FROM webhook_receipts") == [("processed", 1)]
