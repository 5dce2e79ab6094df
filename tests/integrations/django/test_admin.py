"""Events in Django's admin: who may see, replay and rehearse them."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from oncehook.integrations.django.admin import LimitedPaginator
from oncehook.integrations.django.models import AuditEntry, Event
from oncehook.testing import Bench
from tests.support.django_project import create_all_tables, using_database
from tests.support.django_shop.models import Invoice

LIST = reverse("admin:oncehook_event_changelist")


@pytest.fixture
def project(database: str) -> Iterator[Any]:
    """A project whose inbox has a processed event and a dead letter."""
    with using_database(database) as inbox:
        create_all_tables()

        @inbox.on("stripe", "*")
        def handle(event: Any) -> None:
            Invoice.objects.create(number=f"{event.id}-{event._leased.replays}")

        @inbox.on("stripe", "invoice.voided")
        def fail(event: Any) -> None:
            raise LookupError("no <such> invoice")

        with Bench(inbox) as bench:
            bench.deliver("stripe", {"id": "evt_1", "type": "invoice.paid", "data": {"note": "<b>bold</b>"}})
            bench.deliver("stripe", {"id": "evt_2", "type": "invoice.voided", "data": {}})
            bench.drain(later=True)
        yield inbox


def signed_in(*permissions: str) -> Client:
    user = User.objects.create_user("jane", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def page_of(event_id: str) -> str:
    address: str = reverse("admin:oncehook_event_change", args=[Event.objects.get(event_id=event_id).pk])
    return address


def test_event_is_shown_with_its_attempts_and_its_payload(project: Any) -> None:
    client = signed_in("view_event", "view_payload", "replay_event", "rehearse_event")
    found = client.get(LIST, {"q": "evt_2", "status__exact": "failed", "source": "stripe"}).content.decode()
    assert "evt_2" in found and "evt_1" not in found
    assert "LookupError: no &lt;such&gt; invoice" in found
    today = client.get(LIST, {"received_at__gte": "2020-01-01 00:00:00+00:00"}).content.decode()
    assert "evt_1" in today
    page = client.get(page_of("evt_1")).content.decode()
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold</b>" not in page
    assert 'value="Replay"' in page and 'value="Rehearse"' in page
    assert "tests.integrations.django.test_admin" in page, "its attempt, with the handler"


def test_list_counts_events_up_to_a_limit_and_a_long_payload_is_cut_off(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in("view_event", "view_payload")
    monkeypatch.setattr("oncehook.integrations.django.admin.MAX_COUNTED", 0)
    assert LimitedPaginator(Event.objects.order_by("pk"), 50).count == 1, "there are two"
    assert "prints all of it" not in client.get(page_of("evt_1")).content.decode()
    monkeypatch.setattr("oncehook.integrations.django.admin.MAX_SHOWN", 10)
    page = client.get(page_of("evt_1")).content.decode()
    assert "prints all of it" in page and "bold" not in page


def test_payload_needs_its_own_permission(project: Any) -> None:
    client = signed_in("view_event")
    page = client.get(page_of("evt_1")).content.decode()
    assert "evt_1" in page and "bold" not in page
    assert 'value="Replay"' not in page and 'value="Rehearse"' not in page


def test_replay_and_rehearse_need_a_permission(project: Any) -> None:
    client = signed_in("view_event", "view_payload")
    receipt = Event.objects.get(event_id="evt_1").pk
    for action in ("replay", "rehearse"):
        address = reverse(f"admin:oncehook_event_{action}", args=[receipt])
        assert client.post(address).status_code == 403
        assert client.get(address).status_code == 405
        client.post(LIST, {"action": f"{action}_selected", "_selected_action": [receipt]})
    assert Event.objects.get(pk=receipt).status == "processed"


def test_replay_queues_the_selected_events(project: Any) -> None:
    client = signed_in("view_event", "replay_event")
    receipts = list(Event.objects.values_list("pk", flat=True))
    data = {"action": "replay_selected", "_selected_action": receipts}
    assert "2 queued to be handled again" in client.post(LIST, data, follow=True).content.decode()
    assert set(Event.objects.values_list("status", "replays")) == {("received", 1)}
    again = client.post(LIST, data, follow=True).content.decode()
    assert "0 queued" in again and "Not queued" in again
    assert AuditEntry.objects.latest("id").actor == "django:jane"


@pytest.mark.sampled(1)
def test_rehearsal_shows_the_statements_and_changes_nothing(project: Any) -> None:
    client = signed_in("view_event", "rehearse_event")
    numbers = list(Invoice.objects.values_list("number", flat=True))
    receipts = {event.event_id: event.pk for event in Event.objects.all()}
    page = client.post(reverse("admin:oncehook_event_rehearse", args=[receipts["evt_1"]])).content.decode()
    assert "INSERT INTO" in page and "evt_1-1" in page
    page = client.post(LIST, {"action": "rehearse_selected", "_selected_action": receipts.values()}).content.decode()
    assert "INSERT INTO" in page and "LookupError: no &lt;such&gt; invoice" in page
    assert list(Invoice.objects.values_list("number", flat=True)) == numbers
