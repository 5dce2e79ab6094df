"""Whatever happens to the deliveries of a payment: one paid invoice, one mail, one published message."""

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

from examples.shop.__main__ import main, show_warnings
from examples.shop.models import make_engine
from examples.shop.outside import broker, mail_service
from examples.shop.tests.conftest import Shop
from examples.shop.tests.dying import MOMENTS
from oncehook import Inbox, State
from oncehook.testing import Bench, deliver, sign

NOON = 1_790_000_000
PROCESSED = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"


def invoice(event_id: str, type_: str = "invoice.paid", *, at: int = NOON, status: str = "paid") -> dict[str, Any]:
    about: dict[str, Any] = {"id": "in_1", "customer": "cus_1", "customer_email": "ada@example.com", "status": status}
    about |= {"amount_due": 2900, "currency": "eur"}
    return {"id": event_id, "type": type_, "created": at, "data": {"object": about}}


def subscription(id_: str, word: str, at: int, plan: str = "team", status: str = "active") -> dict[str, Any]:
    items = {"data": [{"price": {"id": plan}}]}
    about = {"id": id_, "customer": "cus_1", "status": status, "items": items}
    return {
        "id": f"evt_{id_}_{word}",
        "type": f"customer.subscription.{word}",
        "created": NOON + at,
        "data": {"object": about},
    }


def check_paid_once(shop: Shop) -> None:
    """The sentence that this example is about."""
    assert shop.rows("SELECT id, customer, amount, status FROM invoices") == [("in_1", "cus_1", 2900, "paid")]
    assert mail_service.taken() == [{"to": "ada@example.com", "text": "Thank you for 29.00 EUR, invoice in_1."}]
    assert broker.taken() == [{"topic": "invoice-paid", "invoice": "in_1", "customer": "cus_1"}]
    assert shop.rows("SELECT key, status FROM webhook_effects ORDER BY key") == [
        ("invoice-paid:in_1", "done"),
        ("receipt:in_1", "done"),
    ]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


# -- duplicate ------------------------------------------------------------------------------------------------------


def test_a_payment_that_is_delivered_again_and_again_is_one(oncehook: Bench, shop: Shop) -> None:
    first = oncehook.deliver("stripe", invoice("evt_1"), copies=3)
    assert first.outcome == (202, "accepted")
    assert [other.outcome for other in first.others] == [(200, "duplicate")] * 2
    oncehook.drain(effects=False)
    assert oncehook.perform() == 2
    assert oncehook.deliver("stripe", first.sent).outcome == (200, "duplicate")
    assert (oncehook.drain(effects=False), oncehook.perform()) == ([], 0)
    check_paid_once(shop)


def test_a_payment_that_is_told_in_two_events_is_one(oncehook: Bench, shop: Shop) -> None:
    oncehook.deliver("stripe", invoice("evt_2", "invoice.payment_succeeded"))
    oncehook.deliver("stripe", invoice("evt_1", "invoice.paid"))
    assert [receipt.status for receipt in oncehook.drain(effects=False)] == [State.PROCESSED] * 2
    assert oncehook.perform() == 2
    check_paid_once(shop)


def test_a_customer_without_an_address_has_paid_too(oncehook: Bench, shop: Shop) -> None:
    event = invoice("evt_1")
    event["data"]["object"]["customer_email"] = None
    oncehook.deliver("stripe", event)
    oncehook.drain(effects=False)
    assert oncehook.perform() == 1
    assert shop.rows("SELECT status FROM invoices") == [("paid",)] and mail_service.taken() == []


# -- concurrent -----------------------------------------------------------------------------------------------------


async def deliver_all(inbox: Inbox) -> list[tuple[int, str]]:
    """With workers at work: 20 times one event, and five other events of the same payment, all at once."""
    inbox._runtime.start_worker()
    others = [invoice(f"evt_{n}", "invoice.paid" if n % 2 else "invoice.payment_succeeded") for n in range(2, 7)]
    answers = await asyncio.gather(
        deliver(inbox, "stripe", invoice("evt_1"), copies=20),
        *(deliver(inbox, "stripe", other, copies=2) for other in others),
    )
    return sorted(one.outcome for answer in answers for one in (answer, *answer.others))


def test_a_payment_that_is_delivered_many_times_at_once_is_one(oncehook: Bench, shop: Shop) -> None:
    outcomes = oncehook.run(deliver_all(oncehook.inbox))
    assert outcomes == [(200, "duplicate")] * 24 + [(202, "accepted")] * 6
    until(lambda: shop.rows(PROCESSED) == [(6,)])
    until(lambda: shop.rows("SELECT status FROM webhook_effects") == [("done",)] * 2)
    check_paid_once(shop)


# -- reordered ------------------------------------------------------------------------------------------------------


def test_an_invoice_that_is_paid_stays_so_whatever_comes_late(oncehook: Bench, shop: Shop) -> None:
    for event in (
        invoice("evt_3", "invoice.paid", at=NOON + 60),
        invoice("evt_2", "invoice.finalized", at=NOON + 30, status="open"),
        invoice("evt_4", "invoice.updated", at=NOON + 90, status="open"),
        invoice("evt_1", "invoice.created", at=NOON, status="draft"),
    ):
        oncehook.deliver("stripe", event)
        assert [receipt.status for receipt in oncehook.drain(effects=False)] == [State.PROCESSED]
    oncehook.perform()
    check_paid_once(shop)


def test_an_update_that_comes_before_the_creation_is_kept(oncehook: Bench, shop: Shop) -> None:
    oncehook.deliver("stripe", subscription("sub_1", "updated", at=5, plan="business"))
    oncehook.drain(effects=False)
    oncehook.deliver("stripe", subscription("sub_1", "created", at=0))
    oncehook.drain(effects=False)
    assert shop.rows("SELECT plan, is_active FROM entitlements") == [("business", True)]


def test_a_deleted_subscription_stays_so_in_every_order_of_arrival(oncehook: Bench, shop: Shop) -> None:
    """The update is even the newest by its time: the sender's clock was wrong, and an end is an end."""
    for number, order in enumerate(permutations([("created", 0), ("deleted", 5), ("updated", 9)])):
        for word, at in order:
            oncehook.deliver("stripe", subscription(f"sub_{number}", word, at))
    oncehook.drain(effects=False)  # in order of arrival
    assert [bool(active) for (active,) in shop.rows("SELECT is_active FROM entitlements")] == [False] * 6


# -- crashed --------------------------------------------------------------------------------------------------------


def recover(oncehook: Bench) -> None:
    """Time goes by: leases of the dead run out, and what is due again is done."""
    oncehook.advance("1m")
    oncehook.drain(later=True, effects=False)
    for _ in range(2):
        oncehook.perform()
        oncehook.advance("10m")
    oncehook.perform()


def test_a_payment_whose_worker_was_never_heard_of_again_is_one(oncehook: Bench, shop: Shop) -> None:
    oncehook.deliver("stripe", invoice("evt_1"))
    oncehook.crash()
    assert oncehook.drain(effects=False) == [] and shop.rows("SELECT id FROM invoices") == []
    recover(oncehook)
    check_paid_once(shop)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_payment_whose_worker_was_killed_is_one(oncehook: Bench, shop: Shop, moment: str) -> None:
    oncehook.deliver("stripe", invoice("evt_1"))
    worker = subprocess.run(
        [sys.executable, "-m", "examples.shop.tests.dying", moment], env=shop.environment, timeout=100
    )
    assert worker.returncode == -signal.SIGKILL
    if moment == "in the handler":
        assert shop.rows("SELECT id FROM invoices") == shop.rows("SELECT key FROM webhook_effects") == []
    recover(oncehook)
    check_paid_once(shop)


# -- replayed -------------------------------------------------------------------------------------------------------


def test_a_payment_that_is_replayed_is_one(oncehook: Bench, shop: Shop) -> None:
    answers = [
        oncehook.deliver("stripe", invoice("evt_1")),
        oncehook.deliver("stripe", invoice("evt_2", "invoice.payment_succeeded", at=NOON + 1)),
    ]
    oncehook.drain(effects=False)
    oncehook.perform()
    for _ in range(2):
        assert oncehook.replay(*answers) == 2
        assert [receipt.status for receipt in oncehook.drain(effects=False)] == [State.PROCESSED] * 2
        assert oncehook.perform() == 0
    check_paid_once(shop)


# -- as it is run ---------------------------------------------------------------------------------------------------


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
            until(lambda: answers(client))
            body = json.dumps(invoice("evt_1")).encode()
            headers = sign("stripe", body, shop.environment["STRIPE_WEBHOOK_SECRET"])
            with ThreadPoolExecutor(10) as pool:
                posts = [pool.submit(client.post, "/webhooks/stripe", content=body, headers=headers) for _ in range(20)]
            assert sorted(post.result().status_code for post in posts) == [200] * 19 + [202]
            until(lambda: bool(client.get("/mails").json() and client.get("/bus").json()))
            assert [row["status"] for row in client.get("/invoices").json()] == ["paid"]
            assert "ada@example.com" in client.get("/").text and client.get("/entitlements").json() == []
        finally:
            process.terminate()
    until(lambda: process.poll() is not None)
    check_paid_once(shop)


def test_a_line_of_the_inbox_says_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("oncehook")
    before = list(log.handlers)
    show_warnings()
    try:
        log.warning("effect_failed", extra={"key": "receipt:in_1", "error": "two\nlines"})
    finally:
        log.handlers = before
    assert capsys.readouterr().err == "WARNING oncehook effect_failed key='receipt:in_1' error='two\\nlines'\n"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_the_shop_takes_the_addresses_that_the_inbox_takes(scheme: str) -> None:
    engine = make_engine(f"{scheme}://jane@localhost/shop")
    assert engine.url.render_as_string() == "postgresql+psycopg://jane@localhost/shop"


@pytest.mark.parametrize("port", ["abc", "0", "65536", "²"])
def test_what_is_no_port_is_answered_with_a_sentence(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(sys, "argv", ["shop", port]), pytest.raises(SystemExit):
        main()
    assert "give a number from 1 to 65535" in capsys.readouterr().err


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/invoices").is_success
    except httpx.TransportError:
        return False
