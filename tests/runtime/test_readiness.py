"""`/readyz` succeeds only if an event could be committed now, and answers in time whatever the database does."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest

from oncehook import Inbox
from oncehook.model.errors import Unavailable
from oncehook.runtime import readiness
from oncehook.testing import deliver
from tests.support.events import Rows, stripe_body
from tests.support.serve import served
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

MAX_SECONDS = 2.0
only_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@asynccontextmanager
async def locked(database: str, table: str = "webhook_receipts") -> AsyncIterator[None]:
    """Hold a lock that a claim waits for, as another process would."""
    if database.startswith("sqlite:///"):
        connection = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.close()
    else:
        async with await psycopg.AsyncConnection.connect(database) as holding:
            await holding.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "READY_SECONDS", 0.4)


async def probe(client: httpx.AsyncClient) -> tuple[int, float]:
    started = time.monotonic()
    status = (await client.get("/readyz")).status_code
    return status, time.monotonic() - started


async def wait_until_ready(client: httpx.AsyncClient) -> None:
    async def is_ready() -> bool:
        return (await probe(client))[0] == 200

    await eventually(is_ready, "the readiness probe succeeds after the lock is released", within=20)


def client_of(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=False, base_url=f"http://127.0.0.1:{port}", timeout=60)


def stripe_inbox(make_inbox: Callable[..., Inbox], **settings: object) -> Inbox:
    inbox = make_inbox(**settings)
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def test_the_inbox_is_not_ready_while_another_process_holds_the_write_lock(
    make_inbox: Callable[..., Inbox], database: str, quick_probe: None
) -> None:
    inbox = stripe_inbox(make_inbox, worker=True)
    async with served(inbox) as port, client_of(port) as client:
        assert (await probe(client))[0] == 200
        async with locked(database):
            for _ in range(2):
                status, seconds = await probe(client)
                assert status == 503 and seconds < MAX_SECONDS
        await wait_until_ready(client)


@only_postgres
@pytest.mark.parametrize("table", ["webhook_payloads", "webhook_keys"])
async def test_the_inbox_is_not_ready_while_a_table_of_a_claim_is_locked(
    make_inbox: Callable[..., Inbox], database: str, table: str, quick_probe: None
) -> None:
    async with served(stripe_inbox(make_inbox)) as port, client_of(port) as client:
        async with locked(database, table):
            status, seconds = await probe(client)
            assert status == 503 and seconds < MAX_SECONDS
        await wait_until_ready(client)


async def test_the_probe_answers_in_time_while_deliveries_wait_for_the_lock(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = stripe_inbox(make_inbox, claim_timeout="1s", worker=True)
    async with served(inbox) as port, client_of(port) as client:
        async with locked(database):
            started = time.monotonic()
            sent = [asyncio.create_task(deliver(inbox, "stripe", stripe_body(f"evt_{n}"))) for n in range(20)]
            while not all(task.done() for task in sent):
                status, seconds = await probe(client)
                assert status == 503 and seconds < MAX_SECONDS
            answers = [task.result() for task in sent]
            assert {answer.status for answer in answers} == {503}
            assert time.monotonic() - started < 2 + 6  # twice claim_timeout, and a busy machine
        await wait_until_ready(client)
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


async def test_concurrent_probes_share_one_check(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = stripe_inbox(make_inbox)
    async with inbox.lifespan():
        count, ping = 0, inbox._runtime.store.ping

        async def counted() -> None:
            nonlocal count
            count += 1
            await ping()

        # Checks leave no trace in the database, so the real call is counted.
        monkeypatch.setattr(inbox._runtime.store, "ping", counted)
        await asyncio.gather(*(inbox.ready() for _ in range(50)))
        assert count == 1
        await inbox.ready()
        assert count == 2


async def test_a_check_leaves_no_rows_behind(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = stripe_inbox(make_inbox)
    async with inbox.lifespan():
        for _ in range(3):
            await inbox.ready()
        assert (await deliver(inbox, "stripe", stripe_body())).status == 202
        await inbox.ready()
    assert rows("SELECT count(*) FROM webhook_receipts") == [(1,)]


async def test_a_draining_inbox_is_not_ready_until_it_starts_again(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    async with inbox.lifespan():
        await inbox.ready()
        inbox._runtime.readiness.drain()
        with pytest.raises(Unavailable, match="stopping"):
            await inbox.ready()
    async with inbox.lifespan():
        await inbox.ready()
