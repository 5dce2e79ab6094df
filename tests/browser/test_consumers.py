"""Consumers in a real browser: an event with three of them, their page, and its readability."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage, Service
from tests.browser.test_looks import CONTRAST, SCHEMES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("browser")


def settled_event(service: Service, event_id: str) -> int:
    """Sends an event, and waits until each consumer has made its first attempt."""
    receipt = service.send(event_id)
    attempted = {"main": "processed", "analytics": "retrying", "ledger": "failed"}

    def is_settled() -> bool:
        states = service.api(f"/api/events/{receipt}")["consumers"]
        return {state["consumer"]: state["status"] for state in states} == attempted

    wait_until(is_settled, "each consumer has made its first attempt")
    return receipt


def card(page: Page, consumer: str) -> Locator:
    return page.get_by_role("region", name=consumer, exact=True)


def test_event_shows_three_consumers_side_by_side_and_is_replayed_for_one(
    team_service: Service, open_page: OpenPage
) -> None:
    receipt = settled_event(team_service, "evt_three")
    page = open_page(team_service, path=f"/events/{receipt}")
    boxes = [card(page, name).bounding_box() for name in ("main", "analytics", "ledger")]
    assert len({round(box["y"]) for box in boxes if box}) == 1, "the cards must be side by side"
    expect(card(page, "main").locator(".state")).to_have_text("processed")
    expect(card(page, "analytics")).to_contain_text("Next attempt")
    expect(card(page, "ledger")).to_contain_text("no account for in_1")
    expect(page.get_by_role("heading", name="Timeline of main")).to_be_visible()
    card(page, "ledger").get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("heading", name="Timeline of ledger")).to_be_visible()
    page.get_by_role("button", name="Replay for ledger").click()
    expect(page.get_by_role("status")).to_contain_text("Event replayed.")
    expect(card(page, "ledger").locator(".state")).to_have_text("processed")
    page.get_by_role("button", name="Retry now for analytics").click()
    expect(card(page, "analytics").locator(".state")).to_have_text("processed")
    states = team_service.api(f"/api/events/{receipt}")["consumers"]
    assert [(state["status"], state["replays"]) for state in states] == [
        ("processed", 0), ("processed", 0), ("processed", 1),
    ]  # fmt: skip


def test_consumer_is_paused_and_resumed(team_service: Service, open_page: OpenPage) -> None:
    page = open_page(team_service)
    page.get_by_role("link", name="Consumers").click()
    ledger = page.locator("#consumer-ledger")
    ledger.get_by_text("Pause processing").click()
    ledger.get_by_role("button", name="Pause ledger").click()
    expect(page.get_by_text("Consumer paused.")).to_be_visible()
    receipt = team_service.send("evt_paused")
    page.goto(f"/events/{receipt}")
    expect(card(page, "main").locator(".state")).to_have_text("processed")
    expect(card(page, "ledger")).to_contain_text("The consumer is paused.")
    card(page, "ledger").get_by_role("link", name="paused").click()
    page.get_by_role("button", name="Resume ledger").click()
    expect(page.get_by_text("Consumer resumed.")).to_be_visible()
    page.goto(f"/events/{receipt}")
    expect(card(page, "ledger").locator(".state")).to_have_text("failed")


@pytest.mark.rest
def test_pages_of_consumers_are_readable_in_both_schemes_and_on_a_phone(
    team_service: Service, open_page: OpenPage
) -> None:
    receipt = settled_event(team_service, "evt_looks")
    for scheme in SCHEMES:
        page = open_page(team_service, color_scheme=scheme)
        for path in ("/", "/events", f"/events/{receipt}", "/dead", "/consumers"):
            page.goto(path)
            assert page.evaluate(CONTRAST) == [], f"{path} in {scheme}"
    page.set_viewport_size({"width": 360, "height": 800})
    for path in ("/", "/events", f"/events/{receipt}", "/dead", "/consumers"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} scrolls sideways"
