"""A source's `max_attempts`, `retry` and `timeout` are the defaults of its handlers and of its forward."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.testing import advance, drain
from tests.support.configuration import write_stripe_source
from tests.support.http_target import http_response, receiving
from tests.support.servers import run_sql
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

ROW = "SELECT status, attempts, last_error FROM webhook_receipts"


async def fails(event: Event) -> None:
    raise ValueError("not today")


@pytest.mark.parametrize("line", ["max_attempts = 2", "retry = { attempts = 2 }"])
async def test_queued_event_is_a_dead_letter_after_the_attempts_of_its_source(
    line: str, tmp_path: Path, database: str
) -> None:
    inbox = Inbox(config=write_stripe_source(tmp_path, database, line), worker=False)
    inbox.on("stripe", "invoice.*")(fails)
    async with inbox.lifespan():
        await claim(inbox, "evt_1", type="invoice.paid")
        (receipt,) = await drain(inbox, later=True)
    assert (receipt.status, receipt.attempts) == ("failed", 2)


async def test_retry_and_timeout_of_a_handler_override_those_of_its_source(tmp_path: Path, database: str) -> None:
    inbox = Inbox(config=write_stripe_source(tmp_path, database, "max_attempts = 2", 'timeout = "1ms"'), worker=False)
    inbox.on("stripe", "invoice.*", retry=Retry(attempts=3, first=0.01), timeout="20s")(fails)
    async with inbox.lifespan():
        await claim(inbox, "evt_1", type="invoice.paid")
        (receipt,) = await drain(inbox, later=True)
    assert (receipt.status, receipt.attempts, receipt.last_error) == ("failed", 3, "ValueError: not today")


async def test_backoff_of_a_retry_is_that_of_the_source(tmp_path: Path, database: str) -> None:
    config = write_stripe_source(tmp_path, database, 'retry = { first = "3h", factor = 1, most = "3h" }')
    inbox = Inbox(config=config, worker=False)
    inbox.on("stripe", "invoice.*")(fails)
    async with inbox.lifespan():
        await claim(inbox, *(f"evt_{number}" for number in range(20)), type="invoice.paid")
        await drain(inbox)
        await advance(inbox, "10s")  # by the default policy, every one of them would be due now
        assert len(await drain(inbox)) < 20
        await advance(inbox, "3h")
        await drain(inbox)
    assert min(attempts for (attempts,) in run_sql(database, "SELECT attempts FROM webhook_receipts")) >= 2


async def test_handler_that_exceeds_the_timeout_of_its_source_fails(tmp_path: Path, database: str) -> None:
    inbox = Inbox(config=write_stripe_source(tmp_path, database, 'timeout = "50ms"', "max_attempts = 1"), worker=False)

    @inbox.on("stripe", "invoice.*")
    async def hangs(event: Event) -> None:
        await asyncio.Event().wait()

    async with inbox.lifespan():
        await claim(inbox, "evt_1", type="invoice.paid")
        await drain(inbox)
    ((status, attempts, error),) = run_sql(database, ROW)
    assert (status, attempts) == ("failed", 1)
    assert "0.05 s" in error


async def test_source_that_is_added_after_its_handler_sets_the_defaults_too(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_inbox(worker=False)
    inbox.on("stripe", "invoice.*")(fails)
    inbox.source("stripe", secrets=["whsec_test"], retry=Retry(attempts=1))
    async with inbox.lifespan():
        await claim(inbox, "evt_1", type="invoice.paid")
        await drain(inbox)
    assert run_sql(database, "SELECT status, attempts FROM webhook_receipts") == [("failed", 1)]


async def test_forward_uses_the_retry_policy_of_its_source(tmp_path: Path, database: str) -> None:
    async with receiving(http_response(500), http_response(500), http_response(200)) as receiver:
        lines = (f'forward = "{receiver.url}"', 'retry = { attempts = 2, first = "10ms", most = "20ms" }')
        inbox = Inbox(config=write_stripe_source(tmp_path, database, *lines))
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            await eventually(lambda: run_sql(database, "SELECT status FROM webhook_receipts") == [("failed",)])
        assert len(receiver.requests) == 2


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [((), 15.0), (('timeout = "7s"',), 7.0), (('timeout = "7s"', 'forward_timeout = "3s"'), 3.0)],
)
def test_forward_uses_the_timeout_of_its_source(lines: tuple[str, ...], seconds: float, tmp_path: Path) -> None:
    config = write_stripe_source(tmp_path, f"sqlite:///{tmp_path}/a.db", 'forward = "http://127.0.0.1:9/"', *lines)
    inbox = Inbox(config=config)
    (handler,) = inbox._runtime.handlers
    assert handler.function.__self__.timeout == seconds  # type: ignore[attr-defined]
