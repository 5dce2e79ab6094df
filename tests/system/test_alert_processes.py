"""Alerts of separate processes: two services send one notification, and a killed process loses none."""

import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from oncehook import Inbox
from oncehook.alerts import monitor
from oncehook.testing import advance
from tests.support.alerts import ALERTS, INCIDENTS, SECRET, configured, evaluate_after
from tests.support.events import Rows, stripe_headers
from tests.support.http_target import http_response, receiving, stall_after
from tests.support.serve import Process, write_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def post_without_id(port: int) -> None:
    body = b'{"type": "invoice.paid"}'
    async with httpx.AsyncClient() as client:
        await client.post(f"http://127.0.0.1:{port}/webhooks/stripe", content=body, headers=stripe_headers(body))


def alerting(folder: Path, database: str, url: str) -> Path:
    target = ["[alerts]", 'every = "100ms"', "[alerts.targets.ops]", f'webhook = "{url}"', f'secret = "{SECRET}"']
    return write_config(folder, database, 'log_level = "error"', *target)


@pytest.mark.sampled(1)
async def test_notification_of_a_killed_process_is_sent_by_another_with_the_same_id(
    in_folder: Path, database: str, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    async with receiving(stall_after(), http_response(200)) as receiver:
        process = Process(alerting(in_folder, database, receiver.url))
        try:
            await post_without_id(process.port)
            await eventually(lambda: len(receiver.requests) == 1)  # leased and sent, and not settled
        finally:
            process.kill()
        assert process.process.returncode == -signal.SIGKILL
        assert rows(ALERTS) == [("ops", "opened", "sending", 1)]
        targets = {"ops": {"webhook": receiver.url, "secret": SECRET}}
        inbox = make_inbox(config=configured(targets=targets, recover_after="0s"))
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            assert await inbox._runtime.alerts.send_due() == 0  # the lease of the killed process has not expired
            await advance(inbox, 10 + monitor.MARGIN + 1)
            assert await inbox._runtime.alerts.send_due() == 1
            assert (await evaluate_after(inbox)).opened == []
        ids = [request.headers["webhook-id"] for request in receiver.requests]
        assert len(ids) == 2 and len(set(ids)) == 1
        assert rows(ALERTS) == [("ops", "opened", "told", 2)]


@pytest.mark.sampled(1)
async def test_two_services_on_one_database_send_one_notification(in_folder: Path, database: str, rows: Rows) -> None:
    async with receiving() as receiver:
        config = alerting(in_folder, database, receiver.url)
        processes = [Process(config), Process(config)]
        try:
            await post_without_id(processes[0].port)
            await eventually(lambda: rows(ALERTS) == [("ops", "opened", "told", 1)])
            evaluations = "SELECT number FROM webhook_leaders WHERE task = 'alerts'"
            (before,) = rows(evaluations)
            await eventually(lambda: rows(evaluations)[0][0] > before[0] + 5)  # both services keep evaluating
        finally:
            codes = [process.end() for process in processes]
        assert codes == [0, 0] and len(receiver.requests) == 1
        assert rows(INCIDENTS) == [("dead_letters", "stripe", 0)]
