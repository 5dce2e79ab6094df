"""The ids of events that another package has handled are duplicates after the switch."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from oncehook.testing import Bench
from tests.support.django_shop.models import Invoice
from tests.support.events import Rows

RECEIPTS = "SELECT event_id, type, status, last_error FROM webhook_receipts ORDER BY event_id"
REASON = "imported: handled before by django_shop.Invoice"


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("oncehook_import", *arguments, stdout=output)
    return output.getvalue()


def test_imported_event_is_a_duplicate_and_runs_no_handler(django_inbox: Any, rows: Rows) -> None:
    handled: list[str] = []

    @django_inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        handled.append(event.id)

    for number in ("evt_1", "evt_2"):
        Invoice.objects.create(number=number, status="invoice.paid")  # as the events of another package
    fields = ("--id", "number", "--type", "status")
    assert run("stripe", "django_shop.Invoice", *fields) == "imported 2 of 2 ids; the others are recorded already\n"
    assert run("stripe", "django_shop.Invoice", *fields) == "imported 0 of 2 ids; the others are recorded already\n"
    assert rows(RECEIPTS)[0] == ("evt_1", "invoice.paid", "ignored", REASON)
    with Bench(django_inbox) as bench:
        assert bench.deliver("stripe", type="invoice.paid", id="evt_1").outcome == (200, "duplicate")
        assert bench.deliver("stripe", type="invoice.paid", id="evt_3").outcome == (202, "accepted")
        bench.drain()
    assert handled == ["evt_3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unknown", "django_shop.Invoice", "--id", "number", "--type", "status"), "there is no source unknown"),
        (("stripe", "django_shop.Nothing"), "doesn't have a 'Nothing' model"),
        (("stripe", "django_shop.Invoice", "--id", "event"), "has no field named 'event'"),
        (("stripe", "django_shop.Invoice", "--type", "status", "--time", "id", "--since", "soon"), "soon"),
    ],
)
def test_mistake_in_the_command_is_explained(django_inbox: Any, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments)
