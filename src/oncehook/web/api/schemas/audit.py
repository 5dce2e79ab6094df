"""The audit log in requests and responses."""

from typing import Annotated, Any

from msgspec import Meta, Struct


class AuditQuery(Struct, frozen=True):
    """Selects a page of the audit log."""

    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$", description="`next` of the previous page.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class AuditRow(Struct):
    """An action of a user, a token or the command line."""

    id: int
    at: str
    actor: str
    action: str
    detail: dict[str, Any]


class Audit(Struct):
    """A page of the audit log, newest first."""

    rows: list[AuditRow]
    next: str | None
