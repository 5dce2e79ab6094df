"""The inbox that every app of the suite mounts. Its database and folder come from the environment.

A handler of `invoice.*` writes a row. A handler of `slow.*` creates the file `started-<event>` and waits for the file
`gate`; then it writes a row.
"""

import logging
import os
import sys
from pathlib import Path

from oncehook import Inbox, SyncEvent, SyncTransaction
from tests.support.events import STRIPE_SECRET
from tests.support.waiting import wait_until

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

FOLDER = Path(os.environ["SHOP_FOLDER"])

inbox = Inbox(
    os.environ["SHOP_DATABASE"],
    poll="50ms",
    lease="2s",
    claim_timeout=os.environ.get("SHOP_CLAIM_TIMEOUT", "2s"),
    receive_timeout="2s",
    stop_grace="10s",
    max_body="20kB",
)
inbox.source("stripe", secrets=[STRIPE_SECRET])


def write(event: SyncEvent, tx: SyncTransaction) -> None:
    placeholder = "$1" if os.environ["SHOP_DATABASE"].startswith("postgresql") else "?"
    tx.execute(f"INSERT INTO ledger (note) VALUES ({placeholder})", event.id)


@inbox.on("stripe", "invoice.*")
def invoice(event: SyncEvent, tx: SyncTransaction) -> None:
    write(event, tx)


@inbox.on("stripe", "slow.*")
def slow(event: SyncEvent, tx: SyncTransaction) -> None:
    (FOLDER / f"started-{event.id}").touch()
    wait_until((FOLDER / "gate").exists, "the test opens the gate", within=60)
    write(event, tx)
