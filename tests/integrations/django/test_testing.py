"""The helpers for tests of a Django project, with the test cases of Django."""

import unittest
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import TestCase, TransactionTestCase

from oncehook import State
from oncehook.integrations.django.testing import WebhookMixin, webhooks
from tests.support.django_project import create_all_tables, using_database
from tests.support.django_shop.models import Invoice
from tests.support.work import QUICK


@pytest.fixture
def project_inbox(database: str) -> Any:
    with using_database(database) as inbox:
        create_all_tables()
        yield inbox


def run_case(case: type[Any], name: str = "runTest") -> None:
    """Run one test of a test case, and raise its failure."""
    outcome = unittest.TestResult()
    unittest.TestSuite([case(name)]).run(outcome)
    problems = [*outcome.failures, *outcome.errors]
    assert not problems, problems[0][1]
    assert outcome.testsRun == 1


@pytest.mark.parametrize("base", [TestCase, TransactionTestCase])
def test_handler_writes_what_the_test_sees(project_inbox: Any, base: type[Any]) -> None:
    called: list[str] = []

    @project_inbox.on("stripe", "*", retry=QUICK)
    def handle(event: Any) -> None:
        Invoice.objects.create(number=f"{event.id}-{event.attempt}", status=Invoice.objects.get(pk=1).status)
        transaction.on_commit(lambda: called.append(event.id))
        if event.attempt == 1:
            raise ConnectionError("the bank is closed")

    class Paid(WebhookMixin, base):
        def runTest(self) -> None:
            Invoice.objects.create(pk=1, number="mine", status="open")  # not committed in a TestCase
            response = self.webhooks.post("stripe", type="invoice.paid", id="evt_1", client=self.client)
            assert response.status_code == 202
            assert self.webhooks.deliver("stripe", type="invoice.paid", id="evt_1").was_duplicate
            (receipt,) = self.webhooks.drain(later=True)
            assert (receipt.status, receipt.attempts) == (State.PROCESSED, 2)
            assert list(Invoice.objects.values_list("number", "status").order_by("pk")) == [
                ("mine", "open"),
                ("evt_1-2", "open"),
            ]
            assert called == ["evt_1"]

    run_case(Paid)
    if base is TestCase:
        assert Invoice.objects.count() == 0, "the test was rolled back"


def test_error_without_a_savepoint_fails_the_attempt_in_a_test_too(project_inbox: Any) -> None:
    @project_inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        Invoice.objects.create(number="twice")
        with pytest.raises(IntegrityError):
            Invoice.objects.create(number="twice")

    class Paid(TestCase):
        def runTest(self) -> None:
            with webhooks() as bench:
                bench.deliver("stripe", type="invoice.paid")
                (receipt,) = bench.drain()
                assert "marked the handler's transaction for rollback" in (receipt.last_error or "")
                assert Invoice.objects.count() == 0

    run_case(Paid)


def test_async_handler_and_effects_work_in_a_test(project_inbox: Any) -> None:
    @project_inbox.effect
    def mail(effect: Any, to: str) -> None:
        Invoice.objects.create(number=to)

    @project_inbox.on("stripe", "*")
    async def handle(event: Any) -> None:
        await Invoice.objects.acreate(number=event.id)
        await event.effect("mail", mail, to="jane")

    class Paid(TestCase):
        def runTest(self) -> None:
            with webhooks() as bench:
                bench.deliver("stripe", type="invoice.paid", id="evt_1")
                done = bench.drain()
                assert [receipt.status for receipt in done] == [State.PROCESSED]
                assert [effect.status for effect in done.effects] == ["done"]
                assert list(Invoice.objects.values_list("number", flat=True).order_by("pk")) == ["evt_1", "jane"]

    run_case(Paid)
