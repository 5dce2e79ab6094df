"""Payloads that do not fit: the error names the path, and the event becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from oncehook import (
    Event,
    Inbox,
    Payload,
    Retry,
    State,
)
from oncehook.testing import deliver, drain, post, receipt, replay
from tests.support.events import Rows, github_headers
from tests.support.typed_payloads import (
    OBJECT,
    DataclassInvoice,
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


class Nested(msgspec.Struct):
    value: int
    inner: Nested | None = None


class LaterInvoice(msgspec.Struct):
    id: str
    amount: int | str


class StrictInvoice(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""


async def test_mismatch_names_the_path_the_expected_type_and_the_value(inbox: Inbox) -> None:
    long = "x" * 5000
    shown = f'found str "{"x" * 39}…'
    amount = "Invoice at data.object.amount: expected int,"
    line = {"lines": [{"amount": "a lot"}]}
    deep: dict[str, Any] = {"value": "1"}
    for _ in range(400):
        deep = {"value": 1, "inner": deep}
    cases = [
        (at_object(Invoice), OBJECT | {"amount": "12"}, f'{amount} found str "12"'),
        (at_object(Invoice), OBJECT | {"amount": 1.5}, f"{amount} found float 1.5"),
        (at_object(Invoice), OBJECT | {"amount": True}, f"{amount} found bool true"),
        (at_object(Invoice), OBJECT | {"amount": {"a": long}}, f"{amount} found object"),
        (at_object(Invoice), OBJECT | {"amount": None}, f"{amount} found null"),
        (at_object(Invoice), OBJECT | {"amount": long}, f"{amount} {shown}"),
        (at_object(Invoice), OBJECT | line, "Invoice at data.object.lines.0.amount: expected int, found str"),
        (at_object(Invoice), {"id": "in_1"}, "Invoice: data.object.amount is missing"),
        (at_object(Invoice), "not JSON", 'Invoice at data.object: expected object, found str "not JSON"'),
        (at_object(int), "12", 'int at data.object: expected int, found str "12"'),
        (at_object(Status), long, f"Status at data.object: invalid enum value, {shown}"),
        (at_object(Literal["a", "b"]), "c", "Literal['a', 'b'] at data.object: invalid enum value, found str \"c\""),
        (at_object(Status), "\ud800", "Status at data.object: "),
        (
            at_object(StrictInvoice),
            {"\0" + long: 1},
            r"StrictInvoice at data.object: object contains unknown field \x00x",
        ),
        (at_object(dict[str, int]), {"a": "b"}, "dict[str, int] at data.object.*: expected int"),
        (at_object(dict[int, int]), {"a": 1}, "dict[int, int] at data.object: expected int"),
        (
            at_object(Nested),
            deep,
            f"Nested at data.object.{'inner.' * 8}…{'.inner' * 9}.value: expected int, found str",
        ),
        (at_object(UUID), "x\ny", 'UUID at data.object: invalid UUID, found str "x\\ny"'),
        (at_object(DataclassInvoice), OBJECT | {"amount": -1}, "DataclassInvoice at data.object: an invoice is never"),
        (at_object(ModelInvoice), OBJECT | line, "ModelInvoice at data.object.lines.0.amount: input should be a valid"),
        (at_object(list[ModelLine]), [{}], f"list[{Line.__module__}.ModelLine]: data.object.0.amount is missing"),
        (Annotated[Invoice, Payload("data.subject.invoice")], OBJECT, "Invoice: data.subject.invoice is missing"),
        (Annotated[Invoice, Payload()], OBJECT, "Invoice: amount is missing"),
        (Annotated[list[Line], Payload()], OBJECT, f"list[{Line.__module__}.Line]: expected array, found object"),
    ]
    got, errors = await deliver_cases(inbox, cases)
    assert got == []
    for (_, _, sentence), error in zip(cases, errors, strict=True):
        assert error is not None and error.startswith(f"Fail: payload does not fit {sentence}")
        assert len(error) < 300 and "\n" not in error


async def test_mismatch_is_a_dead_letter_that_a_replay_processes_with_a_fixed_model(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    def make(model: Any) -> Inbox:
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_test"])
        inbox.on("stripe", "*", retry=Retry(attempts=5))(handler_with(at_object(model), got))
        return inbox

    got: list[Any] = []
    async with (first := make(Invoice)).lifespan():
        answer = await deliver(first, "stripe", invoice_event({"id": "in_1", "amount": "12"}))
        (dead,) = await drain(first, later=True)
        assert (dead.status, dead.attempts) == (State.FAILED, 1)
        assert dead.last_error == (
            'Fail: payload does not fit Invoice at data.object.amount: expected int, found str "12"'
        )
        assert await replay(first, answer) == 1
        (again,) = await drain(first)
        assert again.status is State.FAILED and got == []
    async with (second := make(LaterInvoice)).lifespan():
        assert await replay(second, answer) == 1
        (done,) = await drain(second)
    assert done.status is State.PROCESSED and got == [LaterInvoice("in_1", "12")]
    assert rows("SELECT status FROM webhook_receipts") == [("processed",)]


async def test_event_that_does_not_fit_takes_no_connection(make_inbox: Callable[..., Inbox], database: str) -> None:
    scheme, rest = database.split(":", 1)
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}[scheme]
    engine = create_async_engine(f"{driver}:{rest}")
    inbox = make_inbox(engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    checkouts: list[Any] = []
    sums: list[int] = []

    @inbox.on("stripe", "*", once_per="data.object.id")
    async def paid(event: Event, invoice: PaidInvoice, tx: AsyncSession) -> None:
        sums.append((await tx.execute(text(f"SELECT {invoice.amount} + 1"))).scalar_one())

    async with inbox.lifespan():
        sqlalchemy_event.listen(engine.sync_engine, "checkout", lambda *_: checkouts.append(1))
        await deliver(inbox, "stripe", invoice_event({"id": "in_1", "amount": "12"}))
        (dead,) = await drain(inbox)
        assert dead.status is State.FAILED and checkouts == []
        await deliver(inbox, "stripe", invoice_event(OBJECT, id="evt_2"))
        (done,) = await drain(inbox)
        assert done.status is State.PROCESSED and sums == [13] and checkouts
    await engine.dispose()


async def test_body_that_is_neither_json_nor_a_form_is_a_dead_letter(make_inbox: Callable[..., Inbox]) -> None:
    got: list[Any] = []
    inbox = make_inbox()
    inbox.source("github", secrets=["github-secret"])
    inbox.on("github", "*")(handler_with(Annotated[dict[str, Any] | None, Payload()], got))
    async with inbox.lifespan():
        for delivery, sent in (("too-deep", b"[" * 100_000 + b"]" * 100_000), ("null", b"null")):
            await post(inbox, "github", sent, github_headers(sent, delivery))
        errors = {row.event_id: row.last_error for row in await drain(inbox)}
    assert errors["null"] is None and got == [None]
    assert errors["too-deep"] == (
        "Fail: payload does not fit dict[str, typing.Any] | None: the body cannot be read as JSON or a form"
    )


async def test_inline_source_acks_a_payload_that_does_not_fit_as_a_dead_letter(
    make_inbox: Callable[..., Inbox],
) -> None:
    got: list[Any] = []
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(handler_with(at_object(Invoice), got))
    async with inbox.lifespan():
        fits = await deliver(inbox, "stripe", invoice_event(OBJECT))
        fails = await deliver(inbox, "stripe", invoice_event({}, id="evt_2"))
        assert (fits.status, (await receipt(inbox, fits)).status) == (200, State.PROCESSED)
        assert (fails.status, (await receipt(inbox, fails)).status) == (200, State.FAILED)
    assert got == [Invoice("in_1", 12)]
