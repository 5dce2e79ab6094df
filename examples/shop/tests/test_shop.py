"""However a payment is delivered, there is one paid invoice, one mail and one published message."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import permutations
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from examples.shop import hooks
from examples.shop.__main__ import main, show_warnings
from examples.shop.models import make_engine
from examples.shop.services import broker, mail_service
from examples.shop.tests.conftest import Shop
from examples.shop.tests.killed_worker import MOMENTS
from oncehook import Inbox, State
from oncehook.testing import Bench, deliver, sign

NOON = 1_790_000_000
PROCESSED = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"


def invoice(event_id: str, type_: str = "invoice.paid", *, at: int = NOON, status: str = "paid") -> dict[str, Any]:
    about: dict[str, Any] = {"id": "in_1", "customer": "cus_1", "customer_email": "ada@example.com", "status": status}
    about |= {"amount_due": 2900, "currency": "eur"}
    return {"id": event_id, "type": type_, "created": at, "data": {"object": about}}


def subscription(id_: str, action: str, at: int, plan: str = "team", status: str = "active") -> dict[str, Any]:
    items = {"data": [{"price": {"id": plan}}]}
    about = {"id": id_, "customer": "cus_1", "status": status, "items": items}
    return {
        "id": f"evt_{id_}_{action}",
        "type": f"customer.subscription.{action}",
        "created": NOON + at,
        "data": {"object": about},
    }


def assert_paid_once(shop: Shop) -> None:
    """Assert the guarantee that this example demonstrates."""
    assert shop.rows("SELECT id, customer, amount, status FROM invoices") == [("in_1", "cus_1", 2900, "paid")]
    assert mail_service.accepted() == [{"to": "ada@example.com", "text": "Thank you for 29.00 EUR, invoice in_1."}]
    assert broker.accepted() == [{"topic": "invoice-paid", "invoice": "in_1", "customer": "cus_1"}]
    assert shop.rows("SELECT key, status FROM webhook_effects ORDER BY key") == [
        ("invoice-paid:in_1", "done"),
        ("receipt:in_1", "done"),
    ]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s"
        time.sleep(0.05)


# -- duplicate ------------------------------------------------------------------------------------------------------


def test_a_payment_that_is_delivered_repeatedly_counts_once(oncehook: Bench, shop: Shop) -> None:
    first = oncehook.deliver("stripe", invoice("evt_1"), copies=3)
    assert first.outcome == (202, "accepted")
    assert [copy.outcome for copy in first.others] == [(200, "duplicate")] * 2
    oncehook.drain(effects=False)
    assert oncehook.perform() == 2
    assert oncehook.deliver("stripe", first.sent).outcome == (200, "duplicate")
    assert (oncehook.drain(effects=False), oncehook.perform()) == ([], 0)
    assert_paid_once(shop)


def test_a_payment_with_two_events_counts_once(oncehook: Bench, shop: Shop) -> None:
    oncehook.deliver("stripe", invoice("evt_2", "invoice.payment_succeeded"))
    oncehook.deliver("stripe", invoice("evt_1", "invoice.paid"))
    drained = oncehook.drain(effects=False)
    assert sorted((r.event_id, r.consumer, r.status) for r in drained) == [
        ("evt_1", "analytics", State.PROCESSED),
        ("evt_1", "main", State.PROCESSED),
        ("evt_2", "main", State.PROCESSED),
    ]
    assert oncehook.perform() == 2
    assert_paid_once(shop)


def test_a_customer_without_an_address_gets_no_mail(oncehook: Bench, shop: Shop) -> None:
    event = invoice("evt_1")
    event["data"]["object"]["customer_email"] = None
    oncehook.deliver("stripe", event)
    oncehook.drain(effects=False)
    assert oncehook.perform() == 1
    assert shop.rows("SELECT status FROM invoices") == [("paid",)] and mail_service.accepted() == []


# -- concurrent -----------------------------------------------------------------------------------------------------


async def deliver_all(inbox: Inbox) -> list[tuple[int, str]]:
    """While workers run, deliver one event 20 times and five other events of the same payment, all concurrently."""
    inbox._runtime.start_worker()
    others = [invoice(f"evt_{n}", "invoice.paid" if n % 2 else "invoice.payment_succeeded") for n in range(2, 7)]
    responses = await asyncio.gather(
        deliver(inbox, "stripe", invoice("evt_1"), copies=20),
        *(deliver(inbox, "stripe", other, copies=2) for other in others),
    )
    return sorted(copy.outcome for response in responses for copy in (response, *response.others))


def test_a_payment_that_is_delivered_concurrently_counts_once(oncehook: Bench, shop: Shop) -> None:
    outcomes = oncehook.run(deliver_all(oncehook.inbox))
    assert outcomes == [(200, "duplicate")] * 24 + [(202, "accepted")] * 6
    wait_until(lambda: shop.rows(PROCESSED) == [(9,)])  # three of the events are for analytics too
    wait_until(lambda: shop.rows("SELECT status FROM webhook_effects") == [("done",)] * 2)
    assert_paid_once(shop)


# -- reordered ------------------------------------------------------------------------------------------------------


def test_a_paid_invoice_stays_paid_when_older_events_arrive_late(oncehook: Bench, shop: Shop) -> None:
    for event in (
        invoice("evt_3", "invoice.paid", at=NOON + 60),
        invoice("evt_2", "invoice.finalized", at=NOON + 30, status="open"),
        invoice("evt_4", "invoice.updated", at=NOON + 90, status="open"),
        invoice("evt_1", "invoice.created", at=NOON, status="draft"),
    ):
        oncehook.deliver("stripe", event)
        assert {receipt.status for receipt in oncehook.drain(effects=False)} == {State.PROCESSED}
    oncehook.perform()
    assert_paid_once(shop)


def test_an_update_that_arrives_before_the_creation_is_kept(oncehook: Bench, shop: Shop) -> None:
    oncehook.deliver("stripe", subscription("sub_1", "updated", at=5, plan="business"))
    oncehook.drain(effects=False)
    oncehook.deliver("stripe", subscription("sub_1", "created", at=0))
    oncehook.drain(effects=False)
    assert shop.rows("SELECT plan, is_active FROM entitlements") == [("business", True)]


def test_a_deleted_subscription_stays_deleted_in_every_order_of_arrival(oncehook: Bench, shop: Shop) -> None:
    """The update has the newest timestamp, because the sender's clock was wrong. The deletion is final anyway."""
    for number, order in enumerate(permutations([("created", 0), ("deleted", 5), ("updated", 9)])):
        for action, at in order:
            oncehook.deliver("stripe", subscription(f"sub_{number}", action, at))
    oncehook.drain(effects=False)  # in order of arrival
    assert [bool(active) for (active,) in shop.rows("SELECT is_active FROM entitlements")] == [False] * 6


# -- crashed --------------------------------------------------------------------------------------------------------


def recover(oncehook: Bench) -> None:
    """Let the leases of the killed worker expire, then run the events and effects that are due again."""
    oncehook.advance("1m")
    oncehook.drain(later=True, effects=False)
    for _ in range(2):
        oncehook.perform()
        oncehook.advance("10m")
    oncehook.perform()


def test_a_payment_whose_worker_crashed_counts_once(oncehook: Bench, shop: Shop) -> None:
    oncehook.deliver("stripe", invoice("evt_1"))
    oncehook.crash()
    assert [receipt.consumer for receipt in oncehook.drain(effects=False)] == ["analytics"]
    assert shop.rows("SELECT id FROM invoices") == []
    recover(oncehook)
    assert_paid_once(shop)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_payment_whose_worker_was_killed_counts_once(oncehook: Bench, shop: Shop, moment: str) -> None:
    oncehook.deliver("stripe", invoice("evt_1"))
    worker = subprocess.run(
        [sys.executable, "-m", "examples.shop.tests.killed_worker", moment], env=shop.environment, timeout=100
    )
    assert worker.returncode == -signal.SIGKILL
    if moment == "in the handler":
        assert shop.rows("SELECT id FROM invoices") == shop.rows("SELECT key FROM webhook_effects") == []
    recover(oncehook)
    assert_paid_once(shop)


# -- replayed -------------------------------------------------------------------------------------------------------


def test_a_payment_that_is_replayed_counts_once(oncehook: Bench, shop: Shop) -> None:
    responses = [
        oncehook.deliver("stripe", invoice("evt_1")),
        oncehook.deliver("stripe", invoice("evt_2", "invoice.payment_succeeded", at=NOON + 1)),
    ]
    oncehook.drain(effects=False)
    oncehook.perform()
    for _ in range(2):
        assert oncehook.replay(*responses) == 2
        assert [receipt.status for receipt in oncehook.drain(effects=False)] == [State.PROCESSED] * 2
        assert oncehook.perform() == 0
    assert_paid_once(shop)


# -- two consumers --------------------------------------------------------------------------------------------------


def test_a_payment_counts_once_in_analytics_too(oncehook: Bench, shop: Shop) -> None:
    response = oncehook.deliver("stripe", invoice("evt_1"), copies=3)
    oncehook.drain()
    oncehook.replay(response)
    oncehook.drain()
    assert_paid_once(shop)
    assert shop.rows("SELECT invoice, amount, currency, day FROM sales") == [("in_1", 2900, "eur", "2026-09-21")]


def test_a_payment_does_not_wait_for_analytics(oncehook: Bench, shop: Shop) -> None:
    with patch.object(hooks, "sale_of", side_effect=ConnectionError("analytics is down")):
        assert oncehook.deliver("stripe", invoice("evt_1")).outcome == (202, "accepted")
        states = {receipt.consumer: receipt.status for receipt in oncehook.drain()}
    assert states == {"main": State.PROCESSED, "analytics": State.RETRYING}
    assert_paid_once(shop)
    assert shop.rows("SELECT * FROM sales") == []
    assert [receipt.consumer for receipt in oncehook.drain(later=True)] == ["analytics"]
    assert shop.rows("SELECT invoice FROM sales") == [("in_1",)]
    assert_paid_once(shop)


# -- as a process ---------------------------------------------------------------------------------------------------


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_shop_runs_with_one_command(shop: Shop) -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.shop", str(port)], env=shop.environment, stdout=subprocess.PIPE, text=True
    )
    with process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        try:
            assert process.stdout is not None and str(port) in process.stdout.readline()
            wait_until(lambda: is_up(client))
            body = json.dumps(invoice("evt_1")).encode()
            headers = sign("stripe", body, shop.environment["STRIPE_WEBHOOK_SECRET"])
            with ThreadPoolExecutor(10) as pool:
                posts = [pool.submit(client.post, "/webhooks/stripe", content=body, headers=headers) for _ in range(20)]
            assert sorted(post.result().status_code for post in posts) == [200] * 19 + [202]
            wait_until(lambda: bool(client.get("/mails").json() and client.get("/bus").json()))
            assert [row["status"] for row in client.get("/invoices").json()] == ["paid"]
            assert "ada@example.com" in client.get("/").text and client.get("/entitlements").json() == []
        finally:
            process.terminate()
    wait_until(lambda: process.poll() is not None)
    assert_paid_once(shop)


def test_a_log_line_of_the_inbox_shows_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("oncehook")
    before = list(log.handlers)
    show_warnings()
    try:
        log.warning("effect_failed", extra={"key": "receipt:in_1", "error": "two\nlines"})
    finally:
        log.handlers = before
    assert capsys.readouterr().err == "WARNING oncehook effect_failed key='receipt:in_1' error='two\\nlines'\n"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_the_shop_accepts_the_same_database_addresses_as_the_inbox(scheme: str) -> None:
    engine = make_engine(f"{scheme}://jane@localhost/shop")
    assert engine.url.render_as_string() == "postgresql+psycopg://jane@localhost/shop"


@pytest.mark.parametrize("port", ["abc", "0", "65536", "²"])
def test_an_invalid_port_is_reported_with_a_sentence(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(sys, "argv", ["shop", port]), pytest.raises(SystemExit):
        main()
    assert "use a number from 1 to 65535" in capsys.readouterr().err


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/invoices").is_success
    except httpx.TransportError:
        return False
