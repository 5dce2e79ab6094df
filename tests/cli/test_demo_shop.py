"""The demo's handlers: some events and effects fail, most succeed."""

import asyncio
from typing import Any

import pytest

from oncehook import Fail, RetryLater
from oncehook.cli import demo_shop


class Stub:
    """An event or an effect with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def run_handler(handler: Any, **attributes: Any) -> None:
    asyncio.run(handler(Stub(**attributes)))


def test_an_order_fails_only_at_its_first_attempt() -> None:
    with pytest.raises(ConnectionError):
        run_handler(demo_shop.order, receipt=5, attempt=1)
    run_handler(demo_shop.order, receipt=5, attempt=2)
    run_handler(demo_shop.order, receipt=6, attempt=1)


def test_every_third_refund_becomes_a_dead_letter() -> None:
    with pytest.raises(Fail):
        run_handler(demo_shop.charge_refunded, receipt=3, object_id="ch_1")
    run_handler(demo_shop.charge_refunded, receipt=4, object_id="ch_1")


def test_some_mails_are_retried_and_a_few_fail() -> None:
    def send(id: int, attempt: int) -> None:
        asyncio.run(demo_shop.send_receipt(Stub(id=id, attempt=attempt), to="jane@example.com"))  # type: ignore[arg-type]

    send(7, 1)
    with pytest.raises(RetryLater):
        send(10, 1)
    send(10, 2)
    with pytest.raises(Fail, match="the mail server does not know jane"):
        send(30, 2)
