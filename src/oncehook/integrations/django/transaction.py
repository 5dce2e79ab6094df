"""A handler's transaction on a Django connection.

The handler's thread has its own `connections[alias]`, inside `transaction.atomic`. The transaction begins in the
database with the first statement, so a handler that first waits for the network holds no lock. The processed status is
the last statement, and the callbacks of `on_commit` run after the COMMIT.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.utils.connection import ConnectionProxy

from oncehook.concurrency.calling import Function, error_class, error_summary, runs_in_loop
from oncehook.integrations.user_transaction import UserTransaction, interrupt, taken_from_handler
from oncehook.model.lease import Settled
from oncehook.observability import signals
from oncehook.store.transaction import AFTER_HANDLER_ENDED, ENDED_BY_HANDLER, StatementSelector, TransactionClosed

if TYPE_CHECKING:
    from oncehook.integrations.django.sessions import Sessions

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

MARKED_FOR_ROLLBACK = (
    "Django marked the handler's transaction for rollback, after an error that the handler caught or by set_rollback: "
    "use `with transaction.atomic():` around statements that may fail"
)
OPEN_SAVEPOINT = "the handler returned inside `transaction.atomic()`: leave every atomic block before the end"
CLOSED_BY_HANDLER = "the handler closed Django's connection inside its transaction"
FOREIGN_THREAD = "the handler's Django connection was used in another thread: query in the handler's own thread"


class DjangoTransaction(UserTransaction):
    """A handler's transaction on one of the Django connections that `Sessions` keeps for handlers."""

    def __init__(self, sessions: "Sessions") -> None:
        super().__init__(sessions.store)
        self.sessions = sessions
        self._lock = threading.RLock()  # one thread at a time uses the connection
        self._wrapper: Any = None
        self._atomic: Any = None
        self._begun = False
        self._handler_thread: int | None = None
        self._oncehook_thread: int | None = None
        self._waiting: Future[Any] | None = None
        self._begins: Callable[[str, tuple[Any, ...]], Any] | None = None
        self._ends: Callable[[int | None], None] | None = None

    # -- the handler's thread -------------------------------------------------------------------------------------

    def bind(self, function: Function) -> Function:
        """Return a plain function that runs the handler with this transaction as its thread's connection.

        The code of an `async def` runs in a separate event loop, and its queries in the same thread as this function.
        """

        def run(*args: Any, **keywords: Any) -> Any:
            self._handler_thread = threading.get_ident()
            with self._lock:
                if self._ended:
                    raise TransactionClosed(AFTER_HANDLER_ENDED)
                self._open()
            with installed(self.sessions.alias, self._wrapper):
                result = async_to_sync(function)(*args, **keywords) if is_async else function(*args, **keywords)
                if inspect.isawaitable(result):
                    result = async_to_sync(_await)(result)
            with self._lock:
                if not self._ended and not self.used:
                    self._leave_unused()
            return result

        is_async = runs_in_loop(function)
        return run

    def make_tx(self, *, is_async: bool) -> Any:
        """Return `connections[alias]` of the thread that uses it, as `django.db.connection` is."""
        return ConnectionProxy(connections, self.sessions.alias)

    @property
    def used(self) -> bool:
        wrapper = self._wrapper
        return (
            self._interruption is not None
            or self._begun
            or (wrapper is not None and bool(wrapper.run_on_commit or wrapper.needs_rollback or wrapper.savepoint_ids))
        )

    def _open(self) -> None:
        """Enter `atomic` on a connection. On SQLite, Django's BEGIN is left out: it comes with the first statement."""
        if self._wrapper is not None:
            return
        wrapper = self.sessions.check_out()
        try:
            wrapper.execute_wrappers = []
            if self.on_sqlite:
                wrapper._start_transaction_under_autocommit = _do_nothing
            with installed(self.sessions.alias, wrapper):
                self._atomic = transaction.atomic(using=self.sessions.alias)
                self._atomic.__enter__()
        except BaseException:
            self.sessions.discard(wrapper)
            raise
        finally:
            wrapper.__dict__.pop("_start_transaction_under_autocommit", None)
        wrapper.execute_wrappers = [self._run_statement_of_handler]
        wrapper.run_and_clear_commit_hooks = self._after_commit
        self._wrapper = wrapper

    def _leave_unused(self) -> None:
        """Return the connection of a handler that sent no statement. Its effects may need another one later."""
        wrapper, self._wrapper = self._wrapper, None
        self._restore(wrapper)
        with installed(self.sessions.alias, wrapper):
            self._atomic.__exit__(None, None, None)
        self.sessions.check_in(wrapper)

    def _run_statement_of_handler(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        """Run a statement that the handler sends through a cursor of Django."""
        with self._lock:
            self._check_open()
            self._begin()
            if self._begins is not None:
                values = params.values() if isinstance(params, Mapping) else params or ()
                self._begins(str(sql), tuple(values))
            result = execute(sql, params, many, context)
            if self._ends is not None:
                rows = context["cursor"].rowcount
                self._ends(rows if rows >= 0 else None)
            return result

    def _check_open(self) -> None:
        thread = threading.get_ident()
        if thread == self._oncehook_thread:
            return
        if self._ended:
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        self._check_limit()
        if thread != self._handler_thread:
            raise TransactionClosed(FOREIGN_THREAD)

    def _begin(self) -> None:
        """Begin the transaction in the database before the first statement. Later, check that it is still open."""
        if self._begun:
            if self.on_sqlite and not self._wrapper.connection.in_transaction:
                raise TransactionClosed(ENDED_BY_HANDLER)
            return
        if self.on_sqlite and self._write_lock is None:
            self._wait(self._acquire_write_lock())
        try:
            with self._wrapper.wrap_database_errors:
                self.sessions.begin(self._wrapper)
        except BaseException:
            self._loop.call_soon_threadsafe(self._release_write_lock)
            raise
        self._begun = True
        if self.on_sqlite:
            self._loop.call_soon_threadsafe(self._start_limit)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        result: T = self._waiting.result()
        return result

    # -- used by the worker ---------------------------------------------------------------------------------------

    async def connection(self) -> Any:
        raise AssertionError("the `tx` of Django is no proxy of a driver's connection")

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        await self._prepare_statement()
        statement = select(self.store.sql)

        def query() -> list[Any]:
            with self._lock, self._as_oncehook():
                self._open()
                self._begin()
                with self._wrapper.wrap_database_errors:
                    return self.sessions.query(self._wrapper, statement, parameters)

        return await asyncio.shield(self._loop.run_in_executor(self.sessions.statement_threads, query))

    async def _settle_and_commit(self, settled: Sequence[Settled]) -> bool:
        return await self._run(lambda: self._settle(settled))

    def _settle(self, settled: Sequence[Settled]) -> bool:
        self._open()
        wrapper = self._wrapper
        if wrapper.closed_in_transaction:
            raise TransactionClosed(CLOSED_BY_HANDLER)
        if wrapper.savepoint_ids:
            raise TransactionClosed(OPEN_SAVEPOINT)
        if wrapper.needs_rollback:
            raise TransactionClosed(MARKED_FOR_ROLLBACK)
        self._begin()
        if not self.sessions.settle(wrapper, settled):
            return False
        with installed(self.sessions.alias, wrapper):
            self._atomic.__exit__(None, None, None)
        self._wrapper = None
        self.sessions.check_in(wrapper)
        return True

    def _after_commit(self) -> None:
        """Run the callbacks of `on_commit`: the work is committed, whatever they do."""
        wrapper = self._wrapper
        self._restore(wrapper)
        if self.on_sqlite:
            self._loop.call_soon_threadsafe(self._release_write_lock)
        try:
            wrapper.run_and_clear_commit_hooks()
        except Exception as error:
            signals.emit("on_commit_failed", detail=error_class(error_summary(error)))

    def _restore(self, wrapper: Any) -> None:
        wrapper.execute_wrappers = []
        wrapper.__dict__.pop("run_and_clear_commit_hooks", None)

    async def _roll_back(self) -> None:
        await self._run(self._discard)

    def _discard(self) -> None:
        """Roll back and close the connection: a thread of a handler that timed out may still have it."""
        wrapper = self._wrapper
        if wrapper is not None:
            with suppress(Exception):
                wrapper.connection.rollback()
            self.sessions.discard(wrapper)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, after interrupting a statement that the handler still runs."""
        if self._waiting is not None and self._ended:
            self._waiting.cancel()

        def run() -> T:
            with taken_from_handler(self._lock, self._driver), self._as_oncehook():
                return work()

        return await asyncio.shield(self._loop.run_in_executor(self.sessions.threads, run))

    @property
    def _driver(self) -> Any:
        return None if self._wrapper is None else self._wrapper.connection

    @contextmanager
    def _as_oncehook(self) -> Iterator[None]:
        self._oncehook_thread = threading.get_ident()
        try:
            yield
        finally:
            self._oncehook_thread = None

    async def _interrupt_and_roll_back(self) -> None:
        interrupt(self._driver)
        await self._run(lambda: self._driver.rollback())

    # -- used by a rehearsal --------------------------------------------------------------------------------------

    def watch(self, begins: Callable[[str, tuple[Any, ...]], Any], ends: Callable[[int | None], None]) -> None:
        """Call `begins` with each statement of the handler and its parameters, and `ends` with its number of rows."""
        self._begins, self._ends = begins, ends

    async def flush(self) -> None:
        """Do nothing: Django sends each statement at once."""


@contextmanager
def installed(alias: str, wrapper: Any) -> Iterator[None]:
    """Make a connection the `connections[alias]` of this thread."""
    before = getattr(connections._connections, alias, None)
    connections[alias] = wrapper
    try:
        yield
    finally:
        if before is None:
            del connections[alias]
        else:
            connections[alias] = before


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _do_nothing() -> None:
    """Replaces Django's BEGIN on SQLite."""
