"""Typed payloads: parameters that are annotated with `Payload` get a part of the event, decoded, or the event fails."""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import asyncpg
import msgspec
import pydantic
import pytest
from mypy import api as mypy
from sqlalchemy import create_engine, text
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from typing_extensions import TypeAliasType

from oncehook import (
    AsyncTransaction,
    ConfigurationError,
    Event,
    Inbox,
    Payload,
    Retry,
    State,
    SyncTransaction,
)
from oncehook.testing import deliver, drain, isolated, post, receipt, replay
from tests.support.events import Rows, github_headers

if TYPE_CHECKING:
    from asyncpg import Connection

pytestmark = pytest.mark.anyio


class Status(Enum):
    PAID = "paid"
    OPEN = "open"


class Line(msgspec.Struct):
    amount: int


class Nested(msgspec.Struct):
    value: int
    inner: Nested | None = None


class Invoice(msgspec.Struct):
    id: str
    amount: int
    lines: list[Line] = []


class LaterInvoice(msgspec.Struct):
    id: str
    amount: int | str


@dataclass
class DataclassInvoice:
    id: str
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("an invoice is never negative")


class DictInvoice(TypedDict):
    id: str
    amount: int
    note: NotRequired[str]


class ModelLine(pydantic.BaseModel):
    amount: int


class ModelInvoice(pydantic.BaseModel):
    id: str
    amount: int
    lines: list[ModelLine] = []


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    amount: int


class Opaque:
    pass


class Money(msgspec.Struct):
    amount: Decimal
    at: datetime
    key: UUID
    status: Status


class StrictInvoice(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""


class Tree(msgspec.Struct):
    children: list[Tree] = []


PaidInvoice = Annotated[Invoice, Payload("data.object")]
AliasedInvoice = TypeAliasType("AliasedInvoice", PaidInvoice)  # as `type AliasedInvoice = …` makes it
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OBJECT = {"id": "in_1", "amount": 12}


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


def body(value: Any, id: str = "evt_1", type: str = "invoice.paid") -> dict[str, Any]:
    return {"id": id, "type": type, "created": 1763200000, "data": {"object": value}}


def handler_with(annotation: Any, got: list[Any], default: Any = ...) -> Callable[..., Any]:
    """Make a handler whose second parameter has this annotation."""

    async def handler(event: Event, value: Any) -> None:
        got.append(value)

    handler.__annotations__ = {"value": annotation}
    if default is not ...:
        handler.__defaults__ = (default,)
    return handler


async def outcomes(inbox: Inbox, cases: list[tuple[Any, ...]]) -> tuple[list[Any], list[str | None]]:
    """Deliver one event for each (annotation, object, …); return the decoded values and the error of each receipt."""
    got: list[Any] = []
    for number, (annotation, value, *_) in enumerate(cases):
        inbox.on("stripe", f"case.n{number:02}")(handler_with(annotation, got))
        sent = json.dumps(body(value, id=f"evt_{number}", type=f"case.n{number:02}"))
        await deliver(inbox, "stripe", sent.encode())
    worked = sorted(await drain(inbox), key=lambda one: one.receipt)
    assert all(one.attempts == 1 for one in worked)
    return got, [one.last_error for one in worked]


# -- what a handler gets ----------------------------------------------------------------------------------------------


def at_object(type_: Any) -> Any:
    return Annotated[type_, Payload("data.object")]


async def test_every_kind_of_type_is_decoded(inbox: Inbox) -> None:
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
        (Annotated[Any, Payload()], 1, body(1, id="evt_12", type="case.n12")),
        (Annotated[int, msgspec.Meta(gt=3), Payload("data.object")], 4, 4),
        (Annotated["Invoice", Payload("data.object")], OBJECT, Invoice("in_1", 12)),
        ("PaidInvoice", OBJECT, Invoice("in_1", 12)),
        (at_object(Tree), {"children": [{}]}, Tree([Tree()])),
        (at_object(Invoice), '{"id": "in_1", "amount": 12}', Invoice("in_1", 12)),  # JSON in a text, as SNS sends it
        (at_object(str), '{"id": "in_1"}', '{"id": "in_1"}'),
        (at_object(Money), money, Money(Decimal("0.1"), MOMENT, UUID(int=1), Status.PAID)),
    ]  # fmt: skip
    got, errors = await outcomes(inbox, cases)
    assert errors == [None] * len(cases)
    assert got == [expected for _, _, expected in cases]


async def test_parameters_get_payloads_wherever_they_stand(inbox: Inbox, rows: Rows) -> None:
    got: list[Any] = []

    @inbox.on("stripe", "invoice.first")
    async def first(invoice: PaidInvoice, event: Event, /, tx: Any, *, kind: Annotated[str, Payload("type")]) -> None:
        got.append((invoice.id, event.id, await tx.fetchval("SELECT 1"), kind))

    @inbox.on("stripe", "invoice.between")
    async def between(event: Event, invoice: PaidInvoice, tx: Any, lines: Annotated[Any, Payload()]) -> None:
        got.append((invoice.id, event.id, await tx.fetchval("SELECT 1"), lines["type"]))

    @inbox.on("stripe", "invoice.plain")
    def plain(event: Event, tx: Any, invoice: PaidInvoice) -> None:
        assert threading.current_thread() is not threading.main_thread()
        got.append((invoice.id, event.id, tx.fetchval("SELECT 1"), "plain"))

    @inbox.on("stripe", "invoice.alone")
    async def alone(event: Event, *, invoice: PaidInvoice) -> None:
        got.append((invoice.id, event.id))

    for kind in ("first", "between", "plain", "alone"):
        await deliver(inbox, "stripe", body(OBJECT, id=kind, type=f"invoice.{kind}"))
    assert [one.last_error for one in await drain(inbox)] == [None] * 4
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
    async def wrapper(*arguments: Any, **named: Any) -> None:
        await paid(*arguments, **named)

    class Service:
        async def __call__(self, event: Event, invoice: PaidInvoice) -> None:
            got.append(("object", invoice.amount))

    inbox.on("stripe", "invoice.partial")(functools.partial(paid, "partial"))
    inbox.on("stripe", "invoice.wrapped")(functools.partial(wrapper, "wrapped"))
    inbox.on("stripe", "invoice.object")(Service())
    for kind in ("partial", "wrapped", "object"):
        await deliver(inbox, "stripe", body(OBJECT, id=kind, type=f"invoice.{kind}"))
    await drain(inbox)
    assert sorted(got) == [("object", 12), ("partial", 12), ("wrapped", 12)]


async def test_value_that_a_partial_has_bound_is_kept(inbox: Inbox) -> None:
    got: list[Any] = []

    async def paid(event: Event, first: PaidInvoice, second: PaidInvoice) -> None:
        got.append((first.amount, second.amount))

    bound = functools.partial(paid, second=Invoice("in_bound", 1))

    @functools.wraps(bound)
    async def wrapper(*arguments: Any, **named: Any) -> None:
        await bound(*arguments, **named)

    inbox.on("stripe", "invoice.partial")(bound)
    inbox.on("stripe", "invoice.wrapped")(wrapper)
    for kind in ("partial", "wrapped"):
        await deliver(inbox, "stripe", body(OBJECT, id=kind, type=f"invoice.{kind}"))
    await drain(inbox)
    assert got == [(12, 1), (12, 1)]


async def test_default_is_used_only_where_the_path_is_missing(inbox: Inbox) -> None:
    got: list[Any] = []
    coupon = Annotated[str | None, Payload("data.object.coupon")]
    inbox.on("stripe", "*")(handler_with(coupon, got, default="none"))
    for number, value in enumerate(({}, {"coupon": None}, {"coupon": "SPRING"})):
        await deliver(inbox, "stripe", body(value, id=f"evt_{number}"))
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
    assert [one.last_error for one in worked if one.last_error] == [
        'Fail: payload does not fit Message at NumMedia: expected int, found str "three"'
    ]


# -- what does not fit ------------------------------------------------------------------------------------------------


async def test_mismatch_names_path_expectation_and_finding(inbox: Inbox) -> None:
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
        (at_object(list[ModelLine]), [{}], f"list[{__name__}.ModelLine]: data.object.0.amount is missing"),
        (Annotated[Invoice, Payload("data.subject.invoice")], OBJECT, "Invoice: data.subject.invoice is missing"),
        (Annotated[Invoice, Payload()], OBJECT, "Invoice: amount is missing"),
        (Annotated[list[Line], Payload()], OBJECT, f"list[{__name__}.Line]: expected array, found object"),
    ]
    got, errors = await outcomes(inbox, cases)
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
        answer = await deliver(first, "stripe", body({"id": "in_1", "amount": "12"}))
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
        await deliver(inbox, "stripe", body({"id": "in_1", "amount": "12"}))
        (dead,) = await drain(inbox)
        assert dead.status is State.FAILED and checkouts == []
        await deliver(inbox, "stripe", body(OBJECT, id="evt_2"))
        (done,) = await drain(inbox)
        assert done.status is State.PROCESSED and sums == [13] and checkouts
    await engine.dispose()


async def test_plain_handler_gets_its_payload_beside_a_session(make_inbox: Callable[..., Inbox], database: str) -> None:
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    inbox = make_inbox(engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    sums: list[int] = []

    @inbox.on("stripe", "*")
    def paid(invoice: PaidInvoice, event: Event, tx: Session) -> None:
        sums.append(tx.execute(text(f"SELECT {invoice.amount} + 1")).scalar_one())

    async with inbox.lifespan():
        recorded = await receipt(inbox, await deliver(inbox, "stripe", body(OBJECT)))
        assert (await inbox._runtime.rehearse(recorded)).error is None
        assert [one.status for one in await drain(inbox)] == [State.PROCESSED]
    assert sums == [13, 13]
    engine.dispose()


async def test_body_that_cannot_be_read_is_a_dead_letter(make_inbox: Callable[..., Inbox]) -> None:
    got: list[Any] = []
    inbox = make_inbox()
    inbox.source("github", secrets=["github-secret"])
    inbox.on("github", "*")(handler_with(Annotated[dict[str, Any] | None, Payload()], got))
    async with inbox.lifespan():
        for delivery, sent in (("too-deep", b"[" * 100_000 + b"]" * 100_000), ("null", b"null")):
            await post(inbox, "github", sent, github_headers(sent, delivery))
        errors = {one.event_id: one.last_error for one in await drain(inbox)}
    assert errors["null"] is None and got == [None]
    assert errors["too-deep"] == (
        "Fail: payload does not fit dict[str, typing.Any] | None: the body cannot be read as JSON or a form"
    )


async def test_inline_source_answers_for_a_payload_that_does_not_fit(make_inbox: Callable[..., Inbox]) -> None:
    got: list[Any] = []
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(handler_with(at_object(Invoice), got))
    async with inbox.lifespan():
        fits = await deliver(inbox, "stripe", body(OBJECT))
        fails = await deliver(inbox, "stripe", body({}, id="evt_2"))
        assert (fits.status, (await receipt(inbox, fits)).status) == (200, State.PROCESSED)
        assert (fails.status, (await receipt(inbox, fails)).status) == (200, State.FAILED)
    assert got == [Invoice("in_1", 12)]


async def test_rehearsal_and_isolated_inbox_decode_too(inbox: Inbox, tmp_path: Any) -> None:
    seen: list[Any] = []

    @inbox.on("stripe", "*")
    async def paid(event: Event, invoice: PaidInvoice, tx: Any) -> None:
        seen.append(invoice.amount)
        await tx.execute("SELECT 1")

    fits = await receipt(inbox, await deliver(inbox, "stripe", body(OBJECT)))
    fails = await receipt(inbox, await deliver(inbox, "stripe", body({}, id="evt_2")))
    rehearsal = await inbox._runtime.rehearse(fits)
    assert seen == [12] and rehearsal.error is None and len(rehearsal.statements) == 1
    failed = await inbox._runtime.rehearse(fails)
    assert failed.error == "Fail: payload does not fit Invoice: data.object.id is missing" and not failed.statements
    async with (copy := isolated(inbox, f"sqlite:///{tmp_path / 'copy.db'}")).lifespan():
        await deliver(copy, "stripe", body(OBJECT))
        assert [one.status for one in await drain(copy)] == [State.PROCESSED]


# -- registration -----------------------------------------------------------------------------------------------------


@pytest.fixture
def unstarted() -> Inbox:
    return Inbox("sqlite:///never-opened.db", worker=False)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("Annotated[Missing, Payload()]", "has the annotation Annotated.Missing, Payload.... which cannot be resolved"),
        (Annotated["Missing", Payload()], "name 'Missing' is not defined"),  # noqa: F821
        ("Annotated[Invoice, Payload('a..b')]", "is not a path"),
        (
            at_object(Opaque),
            "is a Opaque, and no payload can be decoded to that type: TypeError: Opaque",
        ),
        (at_object(list[Opaque]), "Opaque is not a struct"),
        (at_object(Invoice | DataclassInvoice), "may not contain more than one dict-like type"),
        (at_object(PydanticDataclass), "PydanticDataclass is a pydantic dataclass"),
        (Payload("data.object"), "does not say which payload it gets: annotate it as Annotated"),
        (Payload, "does not say which payload it gets"),
        (Annotated[Invoice, Payload], "does not say which payload it gets"),
        (Annotated[Invoice, Payload("a"), Payload("b")], "does not say which payload it gets"),
        ("Annotated[Invoice, Payload('data')] | None", "optional, write Annotated.Invoice . None, Payload.* = None"),
        ("list[Annotated[Invoice, Payload()]]", "has Payload inside another type: annotate the whole parameter"),
        (Annotated[list[Annotated[Invoice, Payload()]], Payload("data")], "has Payload inside another type"),
        (AliasedInvoice | None, "has Payload inside another type"),
        (Callable[[PaidInvoice], None], "has Payload inside another type"),
        (Payload | None, "has Payload inside another type"),
    ],
)
def test_annotation_that_cannot_be_decoded_is_refused_at_registration(
    unstarted: Inbox, annotation: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        unstarted.on("stripe", "*")(handler_with(annotation, []))
    assert "handler_with.<locals>.handler: the parameter 'value'" in str(refused.value)


def test_parameter_that_collects_arguments_is_refused_as_a_payload(unstarted: Inbox) -> None:
    async def by_position(event: Event, *invoices: PaidInvoice) -> None: ...

    async def by_keyword(event: Event, **invoices: PaidInvoice) -> None: ...

    for handler in (by_position, by_keyword):
        with pytest.raises(ConfigurationError, match="'invoices' collects several arguments, but a payload is one"):
            unstarted.on("stripe", "*")(handler)


def test_payload_as_a_default_value_is_refused(unstarted: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="annotate it as Annotated"):
        unstarted.on("stripe", "*")(handler_with(Invoice, [], default=Payload("data.object")))


@pytest.mark.parametrize("path", ["", "a.", 5])
def test_path_without_keys_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a path"):
        Payload(path)


def test_batch_handler_with_a_payload_is_refused(unstarted: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="has batch=5 and the payload 'value': a batch handler gets a list"):
        unstarted.on("stripe", "*", batch=5)(handler_with(at_object(Invoice), []))


def test_handler_without_an_event_is_refused(unstarted: Inbox) -> None:
    async def paid(invoice: PaidInvoice) -> None: ...

    with pytest.raises(ConfigurationError, match="not 0 arguments; annotate a parameter for a payload as"):
        unstarted.on("stripe", "*")(paid)


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (Invoice, "Invoice"),
        ("Invoice", "Invoice"),
        (DataclassInvoice, "DataclassInvoice"),
        (DictInvoice, "DictInvoice"),
        (ModelInvoice, "ModelInvoice"),
        (PydanticDataclass, "PydanticDataclass"),
        (Invoice | None, "Invoice"),
        (Annotated[Invoice, "the paid one"], "Invoice"),
        (int, "int"),
        (str, "str"),
        (dict[str, Any], "dict"),
        (list, "list"),
    ],
)
def test_payload_without_its_mark_is_refused_in_the_place_of_tx(unstarted: Inbox, annotation: Any, shown: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"'value' would get the transaction, but is annotated as .*{shown}"
    ) as refused:
        unstarted.on("stripe", "*")(handler_with(annotation, []))
    assert 'annotate a payload as Annotated[Invoice, Payload("data.object")]' in str(refused.value)


def test_parameter_with_a_default_is_refused_in_the_place_of_tx_and_not_behind_a_star(unstarted: Inbox) -> None:
    async def by_position(event: Event, extra: int = 3) -> None: ...

    async def by_keyword(event: Event, *, extra: int = 3) -> None: ...

    with pytest.raises(ConfigurationError, match="move a parameter with its own default behind"):
        unstarted.on("stripe", "*")(by_position)
    unstarted.on("stripe", "*")(by_keyword)


@pytest.mark.parametrize(
    "annotation",
    [Any, object, AsyncTransaction, SyncTransaction, AsyncSession, Session, Session | None, "Connection", "Unknown",
     asyncpg.Connection, inspect.Parameter.empty],
)  # fmt: skip
def test_tx_may_have_any_other_annotation_or_none(unstarted: Inbox, annotation: Any) -> None:
    unstarted.on("stripe", "*")(handler_with(annotation, []))
    (handler,) = unstarted._runtime.handlers
    assert handler.takes_tx


def test_names_for_type_checkers_alone_are_no_error(unstarted: Inbox) -> None:
    @unstarted.on("stripe", "*")
    async def paid(event: Event, invoice: PaidInvoice, tx: Connection) -> None: ...

    (handler,) = unstarted._runtime.handlers
    assert handler.takes_tx and handler.payloads is not None


def test_type_alias_is_resolved(unstarted: Inbox) -> None:
    unstarted.on("stripe", "*")(handler_with(AliasedInvoice, []))
    (handler,) = unstarted._runtime.handlers
    assert handler.payloads is not None and not handler.takes_tx


TYPED = """
from typing import Annotated
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession
from oncehook import Event, Inbox, Payload

class Invoice(msgspec.Struct):
    amount: int

inbox = Inbox("sqlite:///shop.db")

@inbox.on("stripe", "invoice.paid")
async def paid(event: Event, invoice: Annotated[Invoice, Payload("data.object")], tx: AsyncSession) -> None:
    reveal_type(invoice.amount)
    invoice.total

reveal_type(paid)
"""


def test_mypy_knows_the_type_of_a_payload(tmp_path: Any) -> None:
    (tmp_path / "shop.py").write_text(TYPED)
    out, _, _ = mypy.run(["--strict", "--no-incremental", "--follow-imports=silent", str(tmp_path / "shop.py")])
    found = [line.partition("shop.py:")[2] for line in out.splitlines() if "shop.py" in line]
    assert found[0].endswith('Revealed type is "int"')
    assert '"Invoice" has no attribute "total"' in found[1]
    assert "invoice: " in found[2] and "Invoice" in found[2] and 'Coroutine[Any, Any, None]"' in found[2]
    assert len(found) == 3
