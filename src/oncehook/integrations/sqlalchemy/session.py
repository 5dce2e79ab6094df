"""The session that a handler uses. Only Oncehook may end its transaction, and it closes with the handler."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from oncehook.integrations.sqlalchemy.cleaner import KEY, in_handler
from oncehook.store.transaction import TransactionClosed

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.transaction import SessionTransaction

used_by_oncehook: ContextVar[Any] = ContextVar("oncehook_session", default=None)
"""The session that Oncehook itself uses in this context, which may commit and roll back."""


class HandlerSession(Session):
    """The `tx` of a plain handler, or the session inside the `AsyncSession` of an async one."""

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            self._check_caller("begin")
        return super().begin(nested=nested)

    def _check_caller(self, name: str) -> None:
        if used_by_oncehook.get() is not self:
            raise TransactionClosed(
                f"a handler may not call tx.{name}(): its work commits with the processed status when it returns, and "
                f"is rolled back when it raises; use begin_nested() for a part that may fail"
            )


USES = (
    "add",
    "add_all",
    "begin_nested",
    "bulk_insert_mappings",
    "bulk_save_objects",
    "bulk_update_mappings",
    "connection",
    "delete",
    "delete_all",
    "execute",
    "flush",
    "get",
    "get_one",
    "merge",
    "merge_all",
    "query",
    "refresh",
    "scalar",
    "scalars",
)
ENDS = ("close", "commit", "invalidate", "prepare", "reset", "rollback")


def _guarded(name: str) -> Callable[..., Any]:
    """Wrap a method of the session that may be called only while the handler runs."""
    inherited = getattr(Session, name)

    @wraps(inherited)
    def guarded(self: HandlerSession, *args: Any, **keywords: Any) -> Any:
        transaction: SessionTransaction = self.info[KEY]
        with transaction.in_use:
            transaction.check_open()
            token = in_handler.set(True)
            try:
                return inherited(self, *args, **keywords)
            finally:
                in_handler.reset(token)

    return guarded


def _reserved(name: str) -> Callable[..., Any]:
    """Wrap a method that ends the transaction, which only Oncehook may call."""
    inherited = getattr(Session, name)

    @wraps(inherited)
    def reserved(self: HandlerSession, *args: Any, **keywords: Any) -> Any:
        self._check_caller(name)
        return inherited(self, *args, **keywords)

    return reserved


for _names, _wrap in ((USES, _guarded), (ENDS, _reserved)):
    for _name in _names:
        if hasattr(Session, _name):  # some exist only in later versions of SQLAlchemy
            setattr(HandlerSession, _name, _wrap(_name))


@event.listens_for(HandlerSession, "after_begin")
def _after_begin(session: HandlerSession, transaction: Any, connection: Connection) -> None:
    if not transaction.nested:
        session.info[KEY].begun(connection)
