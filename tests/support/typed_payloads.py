"""Types that handlers decode payloads to, handlers with such a parameter, and deliveries to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic

from oncehook import Event, Inbox, Payload
from oncehook.testing import deliver, drain


class Status(Enum):
    PAID = "paid"
    OPEN = "open"


class Line(msgspec.Struct):
    amount: int


class Invoice(msgspec.Struct):
    id: str
    amount: int
    lines: list[Line] = []


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


PaidInvoice = Annotated[Invoice, Payload("data.object")]
OBJECT = {"id": "in_1", "amount": 12}


def at_object(type_: Any) -> Any:
    """The annotation of a parameter that is decoded from the object of an event."""
    return Annotated[type_, Payload("data.object")]


def invoice_event(value: Any, id: str = "evt_1", type: str = "invoice.paid") -> dict[str, Any]:
    """The body of an event with this object."""
    return {"id": id, "type": type, "created": 1763200000, "data": {"object": value}}


def handler_with(annotation: Any, got: list[Any], default: Any = ...) -> Callable[..., Any]:
    """Make a handler whose second parameter has this annotation."""

    async def handler(event: Event, value: Any) -> None:
        got.append(value)

    handler.__annotations__ = {"value": annotation}
    if default is not ...:
        handler.__defaults__ = (default,)
    return handler


async def deliver_cases(inbox: Inbox, cases: list[tuple[Any, ...]]) -> tuple[list[Any], list[str | None]]:
    """Deliver one event for each (annotation, object, …); return the decoded values and the error of each receipt."""
    got: list[Any] = []
    for number, (annotation, value, *_) in enumerate(cases):
        inbox.on("stripe", f"case.n{number:02}")(handler_with(annotation, got))
        sent = json.dumps(invoice_event(value, id=f"evt_{number}", type=f"case.n{number:02}"))
        await deliver(inbox, "stripe", sent.encode())
    worked = sorted(await drain(inbox), key=lambda receipt: receipt.receipt)
    assert all(receipt.attempts == 1 for receipt in worked)
    return got, [receipt.last_error for receipt in worked]
