"""Tests of handlers with `TestCase`, `TransactionTestCase` or pytest-django, and with Django's test client.

    class PaidInvoices(WebhookMixin, TestCase):
        def test_paid_invoice(self):
            self.webhooks.deliver("stripe", type="invoice.paid")
            self.webhooks.drain()
            self.assertEqual(Invoice.objects.count(), 1)

A `TestCase` never commits, so other connections would not see its rows. Here, the events are in a database of their
own, and a handler's work is a savepoint of the test's connection, which is rolled back if the handler fails.
"""

import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test import Client
from django.urls import reverse

from oncehook.concurrency.calling import Function, runs_in_loop
from oncehook.inbox import Inbox
from oncehook.integrations.django.instance import project
from oncehook.integrations.django.transaction import MARKED_FOR_ROLLBACK, installed
from oncehook.model.lease import Settled
from oncehook.store.store import Store
from oncehook.store.transaction import StatementSelector, Transaction, TransactionClosed
from oncehook.testing import Bench, deliveries, isolated

T = TypeVar("T")


@contextmanager
def webhooks(**settings: Any) -> Iterator["DjangoBench"]:
    """Run a copy of the project's inbox for a test. Deliveries of Django's test client reach it too."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncehook-")))
        database = TestDatabase(project.using)
        stack.callback(database.close)
        copy = isolated(project.inbox, f"sqlite:///{folder / 'inbox.db'}", engine=database, **settings)
        copy._surround("django", database.in_thread)
        stack.enter_context(project.replaced_by(copy))
        yield stack.enter_context(DjangoBench(copy))


class WebhookMixin:
    """Gives a test case `self.webhooks`: a running copy of the project's inbox."""

    webhooks: "DjangoBench"

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.webhooks = self.enterContext(webhooks())  # type: ignore[attr-defined]


class DjangoBench(Bench):
    """A running inbox for tests, in the thread that also answers requests of Django's test client."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def __enter__(self) -> "DjangoBench":
        self.inbox.wsgi.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.inbox.wsgi.stop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the inbox's event loop, and return its result."""
        return self.inbox.wsgi.thread.run(coroutine)

    def post(
        self, to: str, payload: Any = None, *, client: Any = None, tenant: str | None = None, **options: Any
    ) -> Any:
        """Deliver an event with Django's test client, through the URLs and the middleware of the project.

        Takes the options `type`, `id`, `headers`, `secret` and `now` of `deliver`, and returns Django's response.
        """
        source = deliveries.source_of(self.inbox, to)
        sample = deliveries.make_sample(self.inbox, source, payload, **options)
        address = source.name if tenant is None else f"{source.name}/{tenant}"
        kind = next((value for name, value in sample.headers.items() if name.lower() == "content-type"), "text/plain")
        headers = {name: value for name, value in sample.headers.items() if name.lower() != "content-type"}
        path = reverse("oncehook:receive", args=[address])
        return (client or Client()).post(path, data=sample.body, content_type=kind, headers=headers)


class TestDatabase:
    """The connection of a test, as the `engine` of an inbox."""

    __test__ = False  # pytest does not collect it

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.wrapper = connections[alias]
        self.wrapper.ensure_connection()
        self.wrapper.inc_thread_sharing()
        self.turn = threading.Lock()  # one handler at a time: they share a connection

    def close(self) -> None:
        self.wrapper.dec_thread_sharing()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Let a handler or an effect use the connection of the test."""
        with installed(self.alias, self.wrapper):
            yield

    def make_sessions(self, store: Store) -> "TestSessions":
        return TestSessions(self, store)


class TestSessions:
    """Opens handlers' transactions as savepoints on the test's connection."""

    __test__ = False

    def __init__(self, database: TestDatabase, store: Store) -> None:
        self.database = database
        self.store = store

    def transaction(self) -> "TestTransaction":
        return TestTransaction(self.database, self.store.transaction())

    def with_store(self, store: Store) -> "TestSessions":
        return TestSessions(self.database, store)

    async def dispose(self) -> None:
        """Keep the connection, which is the test's."""

    def check_handlers(self, handlers: Any) -> None:
        """Every handler can run."""

    async def check_database(self) -> None:
        """Accept that the events are in another database than the models."""


class TestTransaction:
    """A handler's savepoint on the test's connection, and the transaction that settles its event elsewhere."""

    __test__ = False

    def __init__(self, database: TestDatabase, events: Transaction) -> None:
        self._database = database
        self._events = events  # effects and the processed status
        self._atomic: Any = None
        self._callbacks = 0

    def bind(self, function: Function) -> Function:
        def run(*args: Any, **keywords: Any) -> Any:
            self._database.turn.acquire()
            with installed(self._database.alias, self._database.wrapper):
                self._callbacks = len(self._database.wrapper.run_on_commit)
                self._atomic = transaction.atomic(using=self._database.alias)
                self._atomic.__enter__()
                return call(*args, **keywords)

        call = async_to_sync(function) if runs_in_loop(function) else function
        return run

    @property
    def used(self) -> bool:
        return self._atomic is not None or self._events.used

    async def connection(self) -> Any:
        return await self._events.connection()

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        return await self._events.run_query(select, parameters)

    def make_tx(self, *, is_async: bool) -> Any:
        return self._database.wrapper

    def close_tx(self) -> None:
        self._events.close_tx()

    async def settle(self, settled: Sequence[Settled]) -> bool:
        if self._atomic is not None and self._database.wrapper.needs_rollback:
            await self.rollback()
            raise TransactionClosed(MARKED_FOR_ROLLBACK)
        await self._events.connection()
        landed = await self._events.settle(settled)
        self._leave(is_committed=landed)
        return landed

    async def rollback(self) -> None:
        await self._events.rollback()
        self._leave(is_committed=False)

    def _leave(self, *, is_committed: bool) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        wrapper, failures = self._database.wrapper, []

        def leave() -> None:
            with installed(self._database.alias, wrapper):
                try:
                    atomic.__exit__(*((None, None, None) if is_committed else (Rollback, Rollback(), None)))
                    callbacks = wrapper.run_on_commit[self._callbacks :]
                    del wrapper.run_on_commit[self._callbacks :]
                    for _, callback, *_ in callbacks if is_committed else ():
                        callback()
                except Exception as error:
                    failures.append(error)

        try:
            _run_in_thread(leave)
        finally:
            self._database.turn.release()
        if failures:
            raise failures[0]

    def watch(self, begins: Callable[..., Any], ends: Callable[..., Any]) -> None:
        """Record nothing: the statements of a test's connection are in `assertNumQueries`."""

    async def flush(self) -> None:
        """Do nothing: Django sends each statement at once."""


class Rollback(Exception):
    """Ends a savepoint."""


def _run_in_thread(work: Callable[[], None]) -> None:
    """Run `work` outside of the event loop, where Django allows queries."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
