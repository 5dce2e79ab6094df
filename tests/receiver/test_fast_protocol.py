"""The fast path of `oncehook serve`: order of responses, shutdown and the connection limit.

The test holds a write lock, so that every commit waits and requests are certainly under way.
"""

import asyncio
import contextlib
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.cli import serve
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import (
    Wire,
    assert_read,
    connected,
    parse_head,
    post_stripe,
    process,
    request,
    served,
    wait_until_refused,
    write_config,
)

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


PATH = "/webhooks/stripe"


COUNT = "SELECT count(*) FROM webhook_receipts"


def delivery(event_id: str, *, forged: bool = False) -> bytes:
    body = stripe_body(event_id)
    return request(PATH, stripe_headers(body, "whsec_other") if forged else stripe_headers(body), body)


@contextlib.contextmanager
def commits_blocked(database: str) -> Iterator[None]:
    """Block every commit for the length of the block, with the write lock of another connection."""
    with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"), timeout=10)) as connection:
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.fixture
async def port(make_inbox: Callable[..., Inbox]) -> AsyncIterator[int]:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        yield port


@pytest.mark.anyio
@pytest.mark.parametrize("together", [True, False], ids=["in one packet", "in two packets"])
async def test_responses_keep_the_order_of_requests_while_a_commit_runs(
    port: int, database: str, together: bool
) -> None:
    async with connected(port) as wire:
        with commits_blocked(database):
            if together:
                await wire.say(delivery("evt_1") + delivery("evt_2", forged=True))
            else:
                await wire.say(delivery("evt_1"))
                await assert_read(port)
                await wire.say(delivery("evt_2", forged=True))
            await assert_read(port)
        outcomes = [(await wire.answer()).status for _ in range(2)]
    assert outcomes == [202, 401], "an immediate rejection must not overtake the response that waits for its commit"


@pytest.mark.anyio
async def test_a_connection_beyond_the_limit_gets_503_and_leaves_no_receipt(
    make_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real limit follows from the open files that the process may have: a lower one would stop the tests too.
    monkeypatch.setattr(serve, "max_connections", lambda: 3)
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port, contextlib.AsyncExitStack() as stack:
        idle: list[Wire] = [await stack.enter_async_context(connected(port)) for _ in range(3)]
        one_more = await stack.enter_async_context(connected(port))
        await one_more.say(delivery("evt_1"))
        assert (await one_more.answer()).status == 503
        for wire in idle:
            wire.leave()
        async with asyncio.timeout(30):
            while True:  # until the server has noticed the disconnects
                async with connected(port) as wire:
                    await wire.say(delivery("evt_2"))
                    if (await wire.answer()).status == 202:
                        break
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_2",)]


def test_a_delivery_that_waits_for_its_commit_at_sigterm_is_acked(tmp_path: Path, database: str, rows: Rows) -> None:
    config = write_config(tmp_path, database)
    with process(config, "--no-worker") as service:
        assert post_stripe(service.port, stripe_body("before")).status_code == 202
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            with commits_blocked(database):
                connection.sendall(delivery("evt_1"))
                with socket.create_connection(("127.0.0.1", service.port), timeout=10) as other:
                    other.sendall(request("/healthz", {}, None, method="GET"))
                    assert parse_head(other.recv(4096).partition(b"\r\n\r\n")[0])[0] == 200
                service.process.send_signal(signal.SIGTERM)
                wait_until_refused(service.port)
            answer = connection.recv(4096)
        assert answer, "the connection was closed without a response"
        assert parse_head(answer.partition(b"\r\n\r\n")[0])[0] == 202
        assert service.wait() == 0
    assert ("evt_1",) in rows("SELECT event_id FROM webhook_receipts")
