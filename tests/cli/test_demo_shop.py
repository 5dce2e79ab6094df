"""The demo's handlers: some events and effects fail, most succeed."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from oncehook.cli.demo_shop import register_handlers
from oncehook.testing import deliver, drain
from tests.support.events import Rows, stripe_body
from tests.support.work import claim

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


@pytest.fixture
async def shop(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox with the demo's handlers, whose receipts and effects are numbered from 1."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.source("shopify", secrets=["key"])
    register_handlers(inbox)
    async with inbox.lifespan():
        yield inbox


async def test_every_fifth_order_fails_at_its_first_attempt_only(shop: Inbox, rows: Rows) -> None:
    await claim(shop, *(f"order_{number:02}" for number in range(1, 11)), source="shopify", type="orders/create")
    receipts = await drain(shop, later=True)
    assert {receipt.status for receipt in receipts} == {"processed"}
    assert {receipt.receipt: receipt.attempts for receipt in receipts if receipt.attempts > 1} == {5: 2, 10: 2}
    errors = rows("SELECT DISTINCT number, error FROM webhook_attempts WHERE error IS NOT NULL")
    assert errors == [(1, "ConnectionError: the warehouse did not answer")]


async def test_every_third_refund_becomes_a_dead_letter(shop: Inbox) -> None:
    await claim(shop, *(f"evt_{number}" for number in range(1, 7)), type="charge.refunded", object_id="ch_1")
    receipts = await drain(shop)
    failed = {receipt.receipt: receipt.last_error for receipt in receipts if receipt.status == "failed"}
    assert failed == dict.fromkeys((3, 6), "Fail: the ledger has no charge ch_1")
    assert [receipt.receipt for receipt in receipts if receipt.status == "processed"] == [1, 2, 4, 5]


async def test_every_tenth_mail_is_retried_and_every_thirtieth_fails(shop: Inbox, rows: Rows) -> None:
    for number in range(1, 31):
        invoice = {"id": f"in_{number}", "customer_email": "jane@example.com"}
        await deliver(shop, "stripe", stripe_body(f"evt_{number}", "invoice.paid", data={"object": invoice}))
    await drain(shop, later=True)
    odd = rows("SELECT id, status, attempts, last_error FROM webhook_effects WHERE id % 10 = 0 ORDER BY id")
    assert [row[:3] for row in odd] == [(10, "done", 2), (20, "done", 2), (30, "failed", 1)]
    assert "the mail server does not know jane@example.com" in odd[2][3]
    others = rows("SELECT DISTINCT status, attempts FROM webhook_effects WHERE id % 10 > 0")
    assert others == [("done", 1)], "all other mails are sent at the first attempt"
    states = rows("SELECT DISTINCT kind, state FROM webhook_entities")
    assert states == [("invoice", "paid")], "the handler advances every invoice"
