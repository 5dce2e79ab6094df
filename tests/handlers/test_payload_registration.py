"""Registering handlers with typed payloads: wrong annotations are errors at start."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import asyncpg
import pydantic
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypeAliasType

from oncehook import (
    AsyncTransaction,
    ConfigurationError,
    Event,
    Inbox,
    Payload,
    SyncTransaction,
)
from tests.support.typed_payloads import (
    DataclassInvoice,
    DictInvoice,
    Invoice,
    ModelInvoice,
    PaidInvoice,
    at_object,
    handler_with,
)

if TYPE_CHECKING:
    from asyncpg import Connection


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    amount: int


class Opaque:
    pass


AliasedInvoice = TypeAliasType("AliasedInvoice", PaidInvoice)  # as `type AliasedInvoice = …` makes it


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
def test_annotation_that_no_payload_can_be_decoded_to_is_an_error(
    unstarted: Inbox, annotation: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        unstarted.on("stripe", "*")(handler_with(annotation, []))
    assert "handler_with.<locals>.handler: the parameter 'value'" in str(error.value)


def test_payload_parameter_that_collects_arguments_is_an_error(unstarted: Inbox) -> None:
    async def by_position(event: Event, *invoices: PaidInvoice) -> None: ...

    async def by_keyword(event: Event, **invoices: PaidInvoice) -> None: ...

    for handler in (by_position, by_keyword):
        with pytest.raises(ConfigurationError, match="'invoices' collects several arguments, but a payload is one"):
            unstarted.on("stripe", "*")(handler)


def test_payload_as_a_default_value_is_an_error(unstarted: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="annotate it as Annotated"):
        unstarted.on("stripe", "*")(handler_with(Invoice, [], default=Payload("data.object")))


@pytest.mark.parametrize("path", ["", "a.", 5])
def test_path_without_keys_is_an_error(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a path"):
        Payload(path)


def test_batch_handler_with_a_payload_is_an_error(unstarted: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="has batch=5 and the payload 'value': a batch handler gets a list"):
        unstarted.on("stripe", "*", batch=5)(handler_with(at_object(Invoice), []))


def test_handler_with_a_payload_and_no_event_is_an_error(unstarted: Inbox) -> None:
    async def paid(invoice: PaidInvoice) -> None: ...

    with pytest.raises(ConfigurationError, match="not 0 arguments; annotate a parameter for a payload as"):
        unstarted.on("stripe", "*")(paid)  # type: ignore[type-var]


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
def test_data_type_without_payload_at_the_position_of_tx_is_an_error(
    unstarted: Inbox, annotation: Any, shown: str
) -> None:
    with pytest.raises(
        ConfigurationError, match=f"'value' would get the transaction, but is annotated as .*{shown}"
    ) as error:
        unstarted.on("stripe", "*")(handler_with(annotation, []))
    assert 'annotate a payload as Annotated[Invoice, Payload("data.object")]' in str(error.value)


def test_parameter_with_a_default_is_allowed_only_behind_a_star(unstarted: Inbox) -> None:
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
def test_tx_may_have_any_annotation_that_is_not_data(unstarted: Inbox, annotation: Any) -> None:
    unstarted.on("stripe", "*")(handler_with(annotation, []))
    (handler,) = unstarted._runtime.handlers
    assert handler.takes_tx


def test_type_of_tx_may_be_imported_for_type_checkers_only(unstarted: Inbox) -> None:
    @unstarted.on("stripe", "*")
    async def paid(event: Event, invoice: PaidInvoice, tx: Connection) -> None: ...

    (handler,) = unstarted._runtime.handlers
    assert handler.takes_tx and handler.payloads is not None


def test_type_alias_is_resolved(unstarted: Inbox) -> None:
    unstarted.on("stripe", "*")(handler_with(AliasedInvoice, []))
    (handler,) = unstarted._runtime.handlers
    assert handler.payloads is not None and not handler.takes_tx
