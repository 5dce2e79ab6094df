"""`oncehook keys rotate` is killed in the middle: every payload stays readable, and the next run continues."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from oncehook import Inbox
from oncehook.config.keyring import read_keys
from oncehook.model.receipt import Filter
from tests.support.encryption import encrypted_inbox, ring
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually

# Each test starts processes: on SQLite only with --torture, as the statements are tested on both elsewhere.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.torture), "postgres"], indirect=True),
]

EVENTS = 1500
KILLS = 1


def start_rotation(database: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "ONCEHOOK_DATABASE": database, "ONCEHOOK_KEYS": ",".join(ring("2026b", "2026a"))}
    command = [sys.executable, "-m", "oncehook", "keys", "rotate"]
    return subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def resealed(rows: Rows) -> int:
    ((number,),) = rows("SELECT count(*) FROM webhook_payloads WHERE key_id = '2026b'")
    return int(number)


def has_more_than(rows: Rows, before: int) -> bool:
    return resealed(rows) > before


@pytest.mark.torture
async def test_killed_rotation_loses_no_payload(make_inbox: Callable[..., Inbox], database: str, rows: Rows) -> None:
    inbox = encrypted_inbox(make_inbox, "2026a")
    async with inbox.lifespan():
        store = inbox._runtime.store
        bodies = {f"evt_{number}": f"body {number}".encode() for number in range(EVENTS)}
        claims = [make_claim(event_id, body=body) for event_id, body in bodies.items()]
        await store.claims.insert(store.encryption.encrypt_claims(claims))

        for _ in range(KILLS):
            before = resealed(rows)
            if before == EVENTS:  # it was faster than the last kill
                break
            rotation = start_rotation(database)
            await eventually(partial(has_more_than, rows, before), "the rotation has committed a page", within=30)
            rotation.kill()
            rotation.wait()
        rotation = start_rotation(database)
        assert rotation.wait(60) == 0 and resealed(rows) == EVENTS
        store._keys = read_keys(ring("2026b"))
        for receipt in await store.receipts.find(Filter(), limit=EVENTS):
            payload = await store.receipts.payload(receipt.receipt)
            assert payload is not None and payload.body == bodies[receipt.event_id]
