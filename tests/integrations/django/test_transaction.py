"""A handler's transaction on a Django connection."""

import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from oncehook import Inbox, Retry
from oncehook.store.sqlite import handler as sqlite_handler
from tests.support.django_project import create_tables, using_database
from tests.support.django_shop.models import Invoice, Payment
from tests.support.engines import last_error
from tests.support.events import Rows
from tests.support.servers import run_sql
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio

INVOICES = "SELECT number, status FROM django_shop_invoice ORDER BY number"
RECEIPTS = "SELECT status, attempts FROM webhook_receipts ORDER BY id"
ONE_ATTEMPT = Retry(attempts=1)


async def work_until(inbox: Inbox, rows: Rows, *statuses: str) -> None:
    inbox._runtime.start_worker()
    await eventually(
        lambda: tuple(status for status, _ in rows(RECEIPTS)) == statuses, f"the receipts become {statuses}"
    )


async def test_orm_work_commits_with_the_processed_status(inbox: Inbox, rows: Rows) -> None:
    order: list[str] = []

    @inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        invoice = Invoice.objects.create(number=event.id)
        with transaction.atomic():
            Payment.objects.create(invoice=invoice)
        transaction.on_commit(lambda: order.append(rows(RECEIPTS)[0][0]))

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1", "paid")]
    await eventually(lambda: order == ["processed"], "on_commit runs after the processed status is committed")


async def test_callback_that_raises_ends_the_callbacks_unless_it_is_robust(
    inbox: Inbox, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def fail() -> None:
        raise LookupError("a mistake in the callback")

    @inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        transaction.on_commit(fail, robust=True)
        transaction.on_commit(lambda: called.append("after the robust one"))
        transaction.on_commit(fail)
        transaction.on_commit(lambda: called.append("after the other"))

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    await eventually(lambda: "on_commit_failed" in caplog.text, "the exception is logged")
    assert called == ["after the robust one"]


async def test_handler_that_raises_leaves_no_write_and_no_callback(inbox: Inbox, rows: Rows) -> None:
    called: list[int] = []

    @inbox.on("stripe", "*", retry=QUICK)
    def handle(event: Any) -> None:
        Invoice.objects.create(number=f"{event.id}-{event.attempt}")
        transaction.on_commit(lambda: called.append(event.attempt))
        if event.attempt < 2:
            raise ConnectionError("the bank is closed")

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1-2", "paid")]
    await eventually(lambda: called == [2], "only the attempt that committed has its callback")


async def test_worker_that_lost_its_lease_leaves_no_write_and_no_callback(inbox: Inbox, rows: Rows) -> None:
    called: list[int] = []

    @inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        if event.attempt == 1:
            rows("UPDATE webhook_receipts SET lease = lease + 1")  # as another worker does that takes it
        Invoice.objects.create(number=f"{event.id}-{event.attempt}")
        transaction.on_commit(lambda: called.append(event.attempt))

    await claim(inbox, "evt_1")
    (leased,) = await inbox._runtime.store.leases.take(1, 30, "worker-1")
    assert await inbox._runtime.start_processor().process(leased) is None
    assert (rows(INVOICES), called) == ([], [])
    assert rows(RECEIPTS)[0][0] == "processing"


async def test_savepoint_undoes_only_its_block(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=ONE_ATTEMPT)
    def handle(event: Any) -> None:
        Invoice.objects.create(number=event.id)
        with pytest.raises(IntegrityError), transaction.atomic():
            Invoice.objects.create(number="in the savepoint")
            Invoice.objects.create(number=event.id)
        Invoice.objects.create(number="after it")

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("after it", "paid"), ("evt_1", "paid")]


async def test_error_that_a_handler_catches_without_a_savepoint_fails_the_attempt(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=ONE_ATTEMPT)
    def handle(event: Any) -> None:
        Invoice.objects.create(number=event.id)
        with pytest.raises(IntegrityError):
            Invoice.objects.create(number=event.id)

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "failed")
    assert rows(INVOICES) == []
    assert "marked the handler's transaction for rollback" in last_error(rows)


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_handler_that_ends_the_transaction_with_sql_fails(inbox: Inbox, rows: Rows, statement: str) -> None:
    @inbox.on("stripe", "*", retry=ONE_ATTEMPT)
    def handle(event: Any) -> None:
        Invoice.objects.filter(number=event.id).exists()
        with connection.cursor() as cursor:
            cursor.execute(statement)
        Invoice.objects.create(number=event.id)

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "failed")
    assert rows(INVOICES) == []
    assert "the handler ended its transaction itself" in last_error(rows)


async def test_handler_that_closes_the_connection_fails(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=ONE_ATTEMPT)
    def handle(event: Any) -> None:
        Invoice.objects.create(number=event.id)
        connection.close()

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "failed")
    assert rows(INVOICES) == []
    assert "closed Django's connection" in last_error(rows)


async def test_constraint_that_fails_at_the_commit_fails_the_attempt(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=ONE_ATTEMPT)
    def handle(event: Any) -> None:
        Payment.objects.create(invoice_id=404)

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "failed")
    assert rows("SELECT count(*) FROM django_shop_payment") == [(0,)]
    assert "IntegrityError" in last_error(rows)


async def test_effect_is_recorded_in_the_transaction_of_the_orm(inbox: Inbox, rows: Rows) -> None:
    sent: list[str] = []

    @inbox.effect
    def mail(effect: Any, number: str) -> None:
        sent.append(number)

    @inbox.on("stripe", "*", retry=QUICK)
    def handle(event: Any) -> None:
        Invoice.objects.create(number=f"{event.id}-{event.attempt}")
        event.effect(f"mail:{event.attempt}", mail, number=event.id)
        if event.attempt < 2:
            raise ConnectionError("the bank is closed")

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    assert rows("SELECT key FROM webhook_effects") == [("mail:2",)]
    await eventually(lambda: sent == ["evt_1"], "the relay runs the effect")


async def test_async_handler_queries_in_the_transaction(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=QUICK)
    async def handle(event: Any) -> None:
        await Invoice.objects.acreate(number=f"{event.id}-{event.attempt}")
        await event.publish("invoices", {"paid": event.id}, key=str(event.attempt))
        if event.attempt < 2:
            raise ConnectionError("the bank is closed")

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1-2", "paid")]
    assert rows("SELECT key FROM webhook_effects") == [("2",)]


async def test_handler_without_queries_opens_no_transaction(inbox: Inbox, rows: Rows) -> None:
    seen: list[bool] = []

    @inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        driver = connection.connection
        in_transaction = driver.in_transaction if connection.vendor == "sqlite" else driver.info.transaction_status != 0
        seen.append(in_transaction)

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    assert seen == [False]


async def test_thread_of_a_handler_has_no_access_after_its_timeout(inbox: Inbox, rows: Rows) -> None:
    waiting, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    errors: list[str] = []

    @inbox.on("stripe", "*", retry=ONE_ATTEMPT, timeout="300ms")
    def handle(event: Any) -> None:
        Invoice.objects.create(number="before")
        waiting.set()
        goes_on.wait(30)
        try:
            Invoice.objects.create(number="after")
        except Exception as error:
            errors.append(type(error).__name__)
        ended.set()

    await claim(inbox, "evt_1")
    await work_until(inbox, rows, "failed")
    goes_on.set()
    await eventually(ended.is_set, "the thread ends")
    assert (rows(INVOICES), len(errors)) == ([], 1)


async def test_rehearsal_shows_the_statements_and_changes_nothing(inbox: Inbox, rows: Rows) -> None:
    called: list[int] = []

    @inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        Invoice.objects.create(number=event.id)
        transaction.on_commit(lambda: called.append(1))

    (receipt,) = await claim(inbox, "evt_1")
    await work_until(inbox, rows, "processed")
    rows("DELETE FROM django_shop_invoice")
    await eventually(lambda: called == [1], "the callback of the real attempt")
    (rehearsal,) = await inbox.rehearse(receipt)
    assert rehearsal.error is None
    assert [statement.sql.split()[0] for statement in rehearsal.statements] == ["INSERT"]
    assert (rows(INVOICES), called) == ([], [1])


async def test_sqlite_handler_that_blocks_the_receiver_is_rolled_back(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.2)
    holds, goes_on = threading.Event(), threading.Event()
    with using_database(sqlite) as inbox:
        create_tables()

        @inbox.on("stripe", "*", retry=ONE_ATTEMPT)
        def handle(event: Any) -> None:
            if event.id == "evt_1":
                Invoice.objects.create(number="held")
                holds.set()
                goes_on.wait(30)
                Invoice.objects.create(number="too late")

        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(holds.is_set, "the handler holds the write lock")
            await claim(inbox, "evt_2")  # waits until the limit is over
            goes_on.set()
            await eventually(lambda: run_sql(sqlite, RECEIPTS)[0][0] == "failed", "the attempt fails")
        assert run_sql(sqlite, INVOICES) == []
        assert "held SQLite's write lock" in run_sql(sqlite, "SELECT last_error FROM webhook_receipts")[0][0]
