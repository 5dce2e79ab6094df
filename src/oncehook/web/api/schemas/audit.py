"""The audit in requests and responses."""

from typing import Annotated, Any

from msgspec import Meta, Struct


class AuditQuery(Struct, frozen=True):
    """A page of the audit."""

    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$", description="`next` of the page before.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class AuditRow(Struct):
    """Something that somebody did."""

    id: int
    at: str
    actor: str
    action: str
    detail: dict[str, Any]


class Audit(Struct):
    """A page, newest first."""

    rows: list[AuditRow]
    next: str | None
