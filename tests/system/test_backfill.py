"""A backfill that is killed ten times and then finishes gives the same rows as one that is not interrupted."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from tests.support.events import Rows, make_claim
from tests.support.serve import write_config
from tests.support.waiting import wait_until
from tests.support.work import claim_and_settle

EVENTS = 1500

COPIES = "SELECT count(*) FROM webhook_receipts WHERE consumer = 'ledger'"

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()


@inbox.on("stripe", "invoice.*", consumer="ledger")
async def book(event: Event) -> None: ...
"""


def start(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "oncehook",
        "backfill",
        "ledger",
        "--since",
        "1d",
        "--app",
        "hooks:inbox",
        *options,
    ]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)})


@pytest.fixture
def shop(in_folder: Path, database: str, make_inbox: Callable[..., Inbox]) -> Path:
    """A folder with an app, and a database with many events, of which one in three has another type."""
    config = write_config(in_folder, database)
    config.with_name("hooks.py").write_text(HOOKS)
    claims = [make_claim(f"evt_{n:04}", type="charge.failed" if n % 3 == 0 else "invoice.paid") for n in range(EVENTS)]
    for first in range(0, EVENTS, 500):
        claim_and_settle(make_inbox, *claims[first : first + 500])
    return config.parent


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.torture)])
def test_backfill_that_is_killed_again_and_again_gives_the_same_rows(shop: Path, rows: Rows, kills: int) -> None:
    done = 0
    for _ in range(kills):
        running = start(shop, "--rate", "200/s")
        try:
            wait_until(lambda: rows(COPIES)[0][0] > done, "the backfill writes receipts")  # noqa: B023
        finally:
            running.kill()
            running.wait()
        done = rows(COPIES)[0][0]
    assert 0 < done < EVENTS * 2 // 3, "the kills must interrupt it"
    assert start(shop).wait() == 0
    expected = [(f"evt_{n:04}", "received") for n in range(EVENTS) if n % 3]
    copies = rows("SELECT event_id, status, main_id, received_at FROM webhook_receipts WHERE consumer = 'ledger'")
    assert sorted((event_id, status) for event_id, status, _, _ in copies) == expected
    mains = {
        row[0]: tuple(row[1:])
        for row in rows("SELECT event_id, id, received_at FROM webhook_receipts WHERE main_id IS NULL")
    }
    assert all(mains[event_id] == (main_id, received_at) for event_id, _, main_id, received_at in copies)
    assert start(shop).wait() == 1, "there is nothing left to do"
