"""Typed payloads: parameters annotated with `Payload` get a part of the event, decoded."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from oncehook import (
    Event,
    Inbox,
    Payload,
    State,
    SyncEvent,
)
from oncehook.testing import deliver, drain, isolated, receipt
from tests.support.events import Rows
from tests.support.typed_payloads import (
    OBJECT,
    DataclassInvoice,
    DictInvoice,
    Invoice,
    Line,
    ModelInvoice,
    ModelLine,
    PaidInvoice,
    Status,
    at_object,
    deliver_cases,
    handler_with,
    invoice_event,
)

pytestmark = pytest.mark.anyio


class Money(msgspec.Struct):
    amount: Decimal
    at: datetime
    key: UUID
    status: Status


class Tree(msgspec.Struct):
    children: list[Tree] = []


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_payload_is_decoded_to_every_kind_of_type(inbox: Inbox) -> None:
    money = {"amount": 0.1, "at": "2026-01-02T03:04:05Z", "key": "0" * 31 + "1", "status": "paid"}
    cases = [
        (at_object(Invoice), OBJECT, Invoice("in_1", 12)),
        (at_object(DataclassInvoice), OBJECT, DataclassInvoice("in_1", 12)),
        (at_object(DictInvoice), OBJECT, {"id": "in_1", "amount": 12}),
        (at_object(ModelInvoice), OBJECT, ModelInvoice(id="in_1", amount=12)),
        (at_object(list[ModelLine]), [{"amount": 1}], [ModelLine(amount=1)]),
        (at_object(ModelLine | None), None, None),
        (at_object(list[Line]), [{"amount": 1}, {"amount": 2}], [Line(1), Line(2)]),
        (at_object(dict[str, Any]), OBJECT, OBJECT),
        (at_object(dict[str, object]), OBJECT, OBJECT),
        (at_object(dict[int, int]), {"1": 2}, {1: 2}),
        (Annotated[int, Payload("data.object.amount")], OBJECT, 12),
        (Annotated[str, Payload("data.object.1.id")], [{}, OBJECT], "in_1"),
        (Annotated[Any, Payload()], 1, invoice_event(1, id="evt_12", type="case.n12")),
        (Annotated[int, msgspec.Meta(gt=3), Payload("data.object")], 4, 4),
        (Annotated["Invoice", Payload("data.object")], OBJECT, Invoice("in_1", 12)),
        ("PaidInvoice", OBJECT, Invoice("in_1", 12)),
        (at_object(Tree), {"children": [{}]}, Tree([Tree()])),
        (at_object(Invoice), '{"id": "in_1", "amount": 12}', Invoice("in_1", 12)),  # JSON in a text, as SNS sends it
        (at_object(str), '{"id": "in_1"}', '{"id": "in_1"}'),
        (at_object(Money), money, Money(Decimal("0.1"), MOMENT, UUID(int=1), Status.PAID)),
    ]  # fmt: skip
    got, errors = await deliver_cases(inbox, cases)
    assert errors == [None] * len(cases)
    assert got == [expected for _, _, expected in cases]


async def test_payload_parameter_may_be_at_any_position(inbox: Inbox, rows: Rows) -> None:
    got: list[Any] = []

    @inbox.on("stripe", "invoice.first")  # type: ignore[type-var]
    async def first(invoice: PaidInvoice, event: Event, /, tx: Any, *, kind: Annotated[str, Payload("type")]) -> None:
        got.append((invoice.id, event.id, await tx.fetchval("SELECT 1"), kind))

    @inbox.on("stripe", "invoice.between")
    async def between(event: Event, invoice: PaidInvoice, tx: Any, lines: Annotated[Any, Payload()]) -> None:
        got.append((invoice.id, event.id, await tx.fetchval("SELECT 1"), lines["type"]))

    @inbox.on("stripe", "invoice.plain")
    def plain(event: SyncEvent, tx: Any, invoice: PaidInvoice) -> None:
        assert threading.current_thread() is not threading.main_thread()
        got.append((invoice.id, event.id, tx.fetchval("SELECT 1"), "plain"))

    @inbox.on("stripe", "invoice.alone")
    async def alone(event: Event, *, invoice: PaidInvoice) -> None:
        got.append((invoice.id, event.id))

    for kind in ("first", "between", "plain", "alone"):
        await deliver(inbox, "stripe", invoice_event(OBJECT, id=kind, type=f"invoice.{kind}"))
    assert [row.last_error for row in await drain(inbox)] == [None] * 4
    assert sorted(got) == [
        ("in_1", "alone"),
        ("in_1", "between", 1, "invoice.between"),
        ("in_1", "first", 1, "invoice.first"),
        ("in_1", "plain", 1, "plain"),
    ]


async def test_wrapped_and_partial_handlers_get_payloads(inbox: Inbox) -> None:
    got: list[Any] = []

    async def paid(label: str, event: Event, invoice: PaidInvoice) -> None:
        got.append((label, invoice.amount))

    @functools.wraps(paid)
    async def wrapper(*arguments: Any, **keywords: Any) -> None:
        await paid(*arguments, **keywords)

    class Service:
        async def __call__(self, event: Event, invoice: PaidInvoice) -> None:
            got.append(("object", invoice.amount))

    inbox.on("stripe", "invoice.partial")(functools.partial(paid, "partial"))
    inbox.on("stripe", "invoice.wrapped")(functools.partial(wrapper, "wrapped"))
    inbox.on("stripe", "invoice.object")(Service())
    for kind in ("partial", "wrapped", "object"):
        await deliver(inbox, "stripe", invoice_event(OBJECT, id=kind, type=f"invoice.{kind}"))
    await drain(inbox)
    assert sorted(got) == [("object", 12), ("partial", 12), ("wrapped", 12)]


async def test_value_that_a_partial_binds_is_not_replaced(inbox: Inbox) -> None:
    got: list[Any] = []

    async def paid(event: Event, first: PaidInvoice, second: PaidInvoice) -> None:
        got.append((first.amount, second.amount))

    bound = functools.partial(paid, second=Invoice("in_bound", 1))

    @functools.wraps(bound)
    async def wrapper(*arguments: Any, **keywords: Any) -> None:
        await bound(*arguments, **keywords)

    inbox.on("stripe", "invoice.partial")(bound)
    inbox.on("stripe", "invoice.wrapped")(wrapper)
    for kind in ("partial", "wrapped"):
        await deliver(inbox, "stripe", invoice_event(OBJECT, id=kind, type=f"invoice.{kind}"))
    await drain(inbox)
    assert got == [(12, 1), (12, 1)]


async def test_default_is_used_only_if_the_path_is_missing(inbox: Inbox) -> None:
    got: list[Any] = []
    coupon = Annotated[str | None, Payload("data.object.coupon")]
    inbox.on("stripe", "*")(handler_with(coupon, got, default="none"))
    for number, value in enumerate(({}, {"coupon": None}, {"coupon": "SPRING"})):
        await deliver(inbox, "stripe", invoice_event(value, id=f"evt_{number}"))
    await drain(inbox)
    assert got == ["none", None, "SPRING"]


async def test_fields_of_a_form_are_converted_from_text(make_inbox: Callable[..., Inbox]) -> None:
    class Message(msgspec.Struct):
        MessageSid: str
        NumMedia: int

    got: list[Any] = []
    inbox = make_inbox()
    inbox.source("twilio", secrets=["token"], public_url="https://example.com/hooks/twilio")
    inbox.on("twilio", "*")(handler_with(Annotated[Message, Payload()], got))
    async with inbox.lifespan():
        for media in ("3", "three"):
            form = {"MessageSid": f"SM{media}", "MessageStatus": "sent", "NumMedia": media}
            await deliver(inbox, "twilio", form)
        worked = await drain(inbox)
    assert got == [Message("SM3", 3)]
    assert [row.last_error for row in worked if row.last_error] == [
        'Fail: payload does not fit Message at NumMedia: expected int, found str "three"'
    ]


async def test_plain_handler_gets_its_payload_and_a_session(make_inbox: Callable[..., Inbox], database: str) -> None:
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    inbox = make_inbox(engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    sums: list[int] = []

    @inbox.on("stripe", "*")  # type: ignore[type-var]
    def paid(invoice: PaidInvoice, event: SyncEvent, tx: Session) -> None:
        sums.append(tx.execute(text(f"SELECT {invoice.amount} + 1")).scalar_one())

    async with inbox.lifespan():
        recorded = await receipt(inbox, await deliver(inbox, "stripe", invoice_event(OBJECT)))
        assert (await inbox._runtime.rehearse(recorded)).error is None
        assert [row.status for row in await drain(inbox)] == [State.PROCESSED]
    assert sums == [13, 13]
    engine.dispose()


async def test_rehearsal_and_isolated_inbox_decode_payloads(inbox: Inbox, tmp_path: Any) -> None:
    seen: list[Any] = []

    @inbox.on("stripe", "*")
    async def paid(event: Event, invoice: PaidInvoice, tx: Any) -> None:
        seen.append(invoice.amount)
        await tx.execute("SELECT 1")

    fits = await receipt(inbox, await deliver(inbox, "stripe", invoice_event(OBJECT)))
    fails = await receipt(inbox, await deliver(inbox, "stripe", invoice_event({}, id="evt_2")))
    rehearsal = await inbox._runtime.rehearse(fits)
    assert seen == [12] and rehearsal.error is None and len(rehearsal.statements) == 1
    failed = await inbox._runtime.rehearse(fails)
    assert failed.error == "Fail: payload does not fit Invoice: data.object.id is missing" and not failed.statements
    async with (copy := isolated(inbox, f"sqlite:///{tmp_path / 'copy.db'}")).lifespan():
        await deliver(copy, "stripe", invoice_event(OBJECT))
        assert [row.status for row in await drain(copy)] == [State.PROCESSED]
