"""Forwards of consumers: which sources they handle, and what their requests carry."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.events import stripe_body
from tests.support.http_target import Request, http_response, receiving
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio


def write(folder: Path, main: str, other: str, more: str = "") -> Path:
    """A configuration whose source has a forward, and whose consumer `analytics` has another."""
    file = folder / "oncehook.toml"
    file.write_text(
        f'[sources.stripe]\nsecrets = ["whsec_test"]\nforward = "{main}/hooks"\n'
        f'[consumers.analytics]\nforward = "{other}/hooks"\n{more}\n'
    )
    return file


def test_forward_handles_the_sources_of_its_consumer(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.consumer("analytics", forward="https://analytics.example/hooks")
    inbox.consumer("ledger", sources=["github"], forward="https://ledger.example/hooks")
    inbox.source("github", secrets=["github-secret"])  # added after the consumers
    handled = {(handler.consumer, handler.source, handler.forwards_to) for handler in inbox._runtime.handlers}
    assert handled == {
        ("analytics", "stripe", "https://analytics.example"),
        ("analytics", "github", "https://analytics.example"),
        ("ledger", "github", "https://ledger.example"),
    }


async def test_requests_of_two_consumers_have_their_own_idempotency_keys(database: str, tmp_path: Path) -> None:
    async with receiving(http_response(204)) as main, receiving(http_response(204)) as other:
        inbox = Inbox(database, config=write(tmp_path, main.url, other.url), worker=True, poll="50ms")
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await eventually(receipts_are(database, "processed", 2))
    (first,), (second,) = main.requests, other.requests
    assert first.body == second.body
    assert (first.headers["idempotency-key"], second.headers["idempotency-key"]) == (
        "stripe:evt_1",
        "stripe@analytics:evt_1",
    )
    assert "oncehook-consumer" not in first.headers and second.headers["oncehook-consumer"] == "analytics"


async def test_request_that_hangs_for_one_consumer_takes_no_slot_of_another_at_the_same_address(
    database: str, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if "oncehook-consumer" in request.headers:
            await go.wait()
        writer.write(http_response(204))

    async with receiving(answer) as receiver:
        config = write(tmp_path, receiver.url, receiver.url, 'concurrency = 1\nforward_timeout = "60s"')
        config.write_text(config.read_text().replace("[consumers", "forward_concurrency = 1\n[consumers"))
        inbox = Inbox(database, config=config, worker=True, poll="50ms")
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await eventually(lambda: receiver.under_way == 1 and len(receiver.requests) == 2)
            await deliver(inbox, "stripe", stripe_body("evt_2"))
            await eventually(receipts_are(database, "processed", 2), "both events of main are processed")
            go.set()
            await eventually(receipts_are(database, "processed", 4))


async def test_broken_forward_of_one_consumer_leaves_the_other_alone(database: str, tmp_path: Path) -> None:
    async with receiving(http_response(204)) as main, receiving(http_response(500)) as broken:
        config = write(tmp_path, main.url, broken.url, 'retry = { attempts = 2, first = "10ms" }')
        inbox = Inbox(database, config=config, worker=True, poll="50ms")
        async with inbox.lifespan():
            assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).outcome == (202, "accepted")
            await eventually(receipts_are(database, "processed", 1))
            await eventually(receipts_are(database, "failed", 1))
            states = {receipt.consumer: receipt.status.value async for receipt in inbox.events()}
    assert states == {"main": "processed", "analytics": "failed"}
    assert len(main.requests) == 1, "the failing consumer must not repeat the work of main"
