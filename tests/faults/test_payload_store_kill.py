"""Processes are killed around the payload store: no acked body is lost, and no object is forgotten."""

import asyncio
import random
import subprocess
from functools import partial
from pathlib import Path

import psycopg
import pytest

from oncehook import Inbox
from oncehook.operations.payload_objects import collect_objects
from oncehook.store.store import Store
from oncehook.testing import advance, deliver
from tests.support.counts import KILLS, Repetitions, count
from tests.support.events import STRIPE_SECRET
from tests.support.forks import ForkedService
from tests.support.payload_stores import FolderStore, large_body
from tests.support.recording_senders import Ledger, send
from tests.support.serve import ONCEHOOK, Process, post_stripe, write_config
from tests.support.servers import run_sql
from tests.support.stores import open_store
from tests.support.waiting import eventually, pause_at_random, wait_until

pytestmark = pytest.mark.anyio

THRESHOLD = 700
STORED = "SELECT r.event_id, r.id FROM webhook_receipts r JOIN webhook_payloads p ON p.receipt_id = r.id"


def configure(folder: Path, database: str) -> tuple[Path, FolderStore]:
    """A configuration whose large bodies are in a directory."""
    store = FolderStore(folder / "payloads")
    lines = (f'payload_store = "{store.address}"', f"payload_threshold = {THRESHOLD}", 'log_level = "error"')
    return write_config(folder, database, *lines), store


def has_fewer_objects(store: FolderStore, number: int) -> bool:
    return len(list(store.folder.rglob("*-*-*/*"))) < number


async def assert_every_ack_is_readable(store: Store, database: str, ledger: Ledger, events: set[str]) -> None:
    seed = f"repeat with Ledger({ledger.seed})"
    assert not ledger.odd, f"{ledger.odd[:3]}: {seed}"
    rows = dict(run_sql(database, STORED))
    for event_id in events:
        payload = await store.receipts.payload(rows[event_id])
        assert payload is not None and payload.body == ledger.bodies[event_id], f"{event_id}: {seed}"


async def assert_no_object_is_forgotten(store: Store, database: str, folder: FolderStore, ledger: Ledger) -> None:
    """After the collection, the payload store has exactly the objects that payloads need."""
    await collect_objects(store, unused=-10.0)
    needed = {row[0] for row in run_sql(database, "SELECT object FROM webhook_payloads WHERE object IS NOT NULL")}
    assert set(folder.objects()) == needed and needed, f"repeat with Ledger({ledger.seed})"
    assert run_sql(database, "SELECT count(*) FROM webhook_payload_objects") == [(len(needed),)]


async def kill_under_load(database: str, folder: Path, kills: int) -> None:
    config, payloads = configure(folder, database)
    ledger = Ledger(random.randrange(2**32))
    async with open_store(database, payload_store=payloads.address) as store:
        for _ in range(kills):
            service, before = ForkedService(config), set(ledger.acked)
            try:
                sending = [asyncio.create_task(send(ledger, service.port)) for _ in range(8)]
                await ledger.until_more(ledger.chance.randrange(1, 100))
                await pause_at_random(ledger.chance, 0.02)
            finally:
                service.kill()
            count(KILLS)
            await asyncio.wait_for(asyncio.gather(*sending), 10)
            await assert_every_ack_is_readable(store, database, ledger, ledger.acked - before)
        await assert_no_object_is_forgotten(store, database, payloads, ledger)
        await assert_every_ack_is_readable(store, database, ledger, ledger.acked)


@pytest.mark.rest
async def test_kills_under_load_lose_no_body_and_forget_no_object(database: str, tmp_path: Path) -> None:
    await kill_under_load(database, tmp_path, 2)


@pytest.mark.torture
async def test_many_kills_under_load_lose_no_body_and_forget_no_object(
    database: str, tmp_path: Path, repetitions: Repetitions
) -> None:
    await kill_under_load(database, tmp_path, repetitions(10, 100))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_kill_between_the_object_and_the_claim_leaves_an_object_that_is_collected(
    database: str, tmp_path: Path
) -> None:
    config, payloads = configure(tmp_path, database)
    body = large_body("evt_1")
    service = Process(config)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE webhook_payloads IN EXCLUSIVE MODE")  # the object is written, the claim waits
        sending = asyncio.create_task(asyncio.to_thread(post_stripe, service.port, body))
        await eventually(payloads.objects, "the object is written")
        service.kill()
        with pytest.raises(Exception):  # noqa: B017 - the connection ends in one of several ways
            await sending
    await eventually(
        lambda: run_sql(database, "SELECT count(*) FROM webhook_receipts") == [(0,)], "the claim was rolled back"
    )
    service = Process(config)
    assert (await asyncio.to_thread(post_stripe, service.port, body)).status_code == 202
    service.kill()
    assert len(payloads.objects()) == 2
    async with open_store(database, payload_store=payloads.address) as store:
        await collect_objects(store, unused=-10.0)
        assert list(payloads.objects()) == [run_sql(database, "SELECT object FROM webhook_payloads")[0][0]]


@pytest.mark.torture
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_killed_prune_deletes_every_object_of_a_pruned_event_at_its_next_run(
    database: str, tmp_path: Path
) -> None:
    config, payloads = configure(tmp_path, database)
    inbox = Inbox(database, payload_store=payloads.address, payload_threshold=THRESHOLD, worker=False)
    inbox.source("stripe", secrets=[STRIPE_SECRET], types=["nothing"])  # its events are ignored, which is finished
    async with inbox.lifespan():
        for number in range(300):
            await deliver(inbox, "stripe", large_body(f"evt_{number}"))
        await advance(inbox, "60d")
        await deliver(inbox, "stripe", large_body("evt_new"))
    prune = [str(ONCEHOOK), "prune", "--config", str(config)]
    for left in (280, 150):
        killed = subprocess.Popen(prune, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(partial(has_fewer_objects, payloads, left), "some objects are deleted")
        killed.kill()
        killed.wait()
    assert subprocess.run(prune, capture_output=True, check=False).returncode == 0
    assert list(payloads.objects()) == [run_sql(database, "SELECT object FROM webhook_payloads")[0][0]]
    assert run_sql(database, "SELECT count(*) FROM webhook_payload_objects") == [(1,)]
