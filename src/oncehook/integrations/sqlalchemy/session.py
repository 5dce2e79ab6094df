"""The session that a handler uses: its end is Oncehook's, and it is dead once the handler has ended."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from oncehook.integrations.sqlalchemy.cleaner import KEY, is_handlers
from oncehook.store.transaction import TransactionClosed

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.transaction import SessionTransaction

used_by_oncehook: ContextVar[Any] = ContextVar("oncehook_session", default=None)
"""The session that Oncehook itself is using in this context: it may commit and roll back."""


class HandlerSession(Session):
    """What a handler gets, or what its AsyncSession stands on. It is dead once its handler has ended."""

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            self._refuse("begin")
        return super().begin(nested=nested)

    def _refuse(self, name: str) -> None:
        if used_by_oncehook.get() is not self:
            raise TransactionClosed(
                f"tx.{name}() is not the handler's to call: its work commits with the mark when it returns, and is "
                f"rolled back when it raises; use begin_nested() around what may fail"
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
    """A verb of the session that counts only while the handler runs."""
    inherited = getattr(Session, name)

    @wraps(inherited)
    def guarded(self: HandlerSession, *args: Any, **named: Any) -> Any:
        transaction: SessionTransaction = self.info[KEY]
        with transaction.in_use:
            transaction.check_open()
            token = is_handlers.set(True)
            try:
                return inherited(self, *args, **named)
            finally:
                is_handlers.reset(token)

    return guarded


def _kept(name: str) -> Callable[..., Any]:
    """A verb that ends the transaction: only ours."""
    inherited = getattr(Session, name)

    @wraps(inherited)
    def kept(self: HandlerSession, *args: Any, **named: Any) -> Any:
        self._refuse(name)
        return inherited(self, *args, **named)

    return kept


for _names, _wrap in ((USES, _guarded), (ENDS, _kept)):
    for _name in _names:
        if hasattr(Session, _name):  # some came with later versions of SQLAlchemy
            setattr(HandlerSession, _name, _wrap(_name))


@event.listens_for(HandlerSession, "after_begin")
def _after_begin(session: HandlerSession, transaction: Any, connection: Connection) -> None:
    if not transaction.nested:
        session.info[KEY].begun(connection)
