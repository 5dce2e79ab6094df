"""Every page and every change in a real browser, on both databases; with JavaScript and without."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opened, Service
from tests.servers import ask

pytestmark = pytest.mark.xdist_group("browser")


def until_settled(service: Service, *receipts: int) -> None:
    """Until a worker is done with these."""
    for _ in range(400):
        if all(service.api(f"/api/events/{one}")["status"] in ("processed", "failed") for one in receipts):
            return
    raise AssertionError("no worker took them")


def test_from_nothing_to_the_first_event_without_a_reload(service: Service, open_page: Opened) -> None:
    page = open_page(service)
    if service.api("/api/events")["events"] == []:
        expect(page.get_by_role("heading", name="Nothing has arrived yet")).to_be_visible()
        expect(page.get_by_text(f"{service.address}/webhooks/stripe").first).to_be_visible()
        service.send("evt_first")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("received in the last hour"))).to_be_visible()
    page.get_by_role("link", name="Last week").click()
    expect(page.get_by_role("link", name="Last week")).to_have_attribute("aria-current", "true")


def test_events_are_filtered_searched_and_paged(service: Service, open_page: Opened) -> None:
    for n in range(55):
        service.send(f"evt_page_{n:02}", "plan.created" if n else "plan.rare", note=f"needle{n}")
    page = open_page(service, path="/events?type=plan.*")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(5)
    page.get_by_label("Search").fill("needle37")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_text("evt_page_37")).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Type").fill("plan.rare")
    page.get_by_label("Type").press("Enter")
    expect(rows).to_have_count(1)
    page.get_by_label("Since").fill("yesterday")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("alert")).to_contain_text("since is not a time")


def test_a_list_stays_current_by_itself(service: Service, open_page: Opened) -> None:
    service.send("evt_before_live")
    page = open_page(service, path="/events")
    expect(page.get_by_text("evt_before_live")).to_be_visible()
    service.send("evt_live")
    expect(page.get_by_text("evt_live")).to_be_visible()


def test_an_event_is_replayed_rehearsed_and_erased(service: Service, open_page: Opened) -> None:
    receipt = service.send("evt_one", data={"object": {"id": "in_one"}})
    until_settled(service, receipt)
    page = open_page(service, path=f"/events/{receipt}")
    expect(page.get_by_role("heading", name="invoice.paid")).to_be_visible()
    expect(page.locator(".body")).to_contain_text('"id": "evt_one"')
    page.get_by_role("button", name="Rehearse").click()
    expect(page.locator(".diff .added")).to_contain_text("INSERT INTO paid")
    assert ask(service.database, "SELECT count(*) FROM paid WHERE id = 'in_one'") == [(1,)]
    page.goto(f"/events/{receipt}")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status")).to_contain_text("It was replayed")
    expect(page.locator(".timeline")).to_contain_text("user:otto")
    until_settled(service, receipt)
    assert ask(service.database, "SELECT count(*) FROM paid WHERE id = 'in_one'") == [(2,)]
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the exact bytes").click()
    assert download.value.suggested_filename == f"event-{receipt}.txt"
    page.get_by_text("Erase the payload").click()
    page.get_by_role("button", name="Erase for good").click()
    expect(page.get_by_role("status")).to_contain_text("Its payload was erased")
    page.get_by_role("link", name="Audit").click()
    expect(page.locator("tbody")).to_contain_text("forget")


def test_dead_letters_are_replayed_together(service: Service, open_page: Opened) -> None:
    receipts = [service.send(f"evt_dead_{n}", "charge.failed", data={"object": {"id": f"card_{n}"}}) for n in range(3)]
    until_settled(service, *receipts)
    page = open_page(service, path="/dead")
    row = page.locator("tr", has_text="was declined")
    expect(row).to_contain_text("3")
    row.get_by_role("link", name="Replay these …").click()
    expect(page.get_by_role("heading", name="Replay 3 events?")).to_be_visible()
    page.get_by_role("button", name="Replay 3 events").click()
    expect(page.get_by_role("heading", name="Replayed")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("3 replayed of 3 events")


def test_sources_and_the_audit_are_there(service: Service, open_page: Opened) -> None:
    page = open_page(service, path="/sources")
    expect(page.get_by_role("heading", name="stripe")).to_be_visible()
    page.get_by_text("Rotate its secret").click()
    expect(page.get_by_text("both are good now")).to_be_visible()
    page.get_by_role("link", name="Audit").click()
    expect(page.locator("tbody tr").first).to_be_visible()


def test_a_viewer_sees_no_button_that_changes_anything(service: Service, open_page: Opened) -> None:
    receipt = service.send("evt_viewed")
    until_settled(service, receipt)
    page = open_page(service, "vera", f"/events/{receipt}")
    expect(page.get_by_role("heading", name="invoice.paid")).to_be_visible()
    assert page.get_by_role("button").all_inner_texts() in (
        ["Sign out"],
        ["Sign out", "Copy"],
        ["Sign out", "Copy", "Copy"],
    )
    page.goto("/events?status=processed")
    expect(page.get_by_role("link", name="Replay these …")).to_have_count(0)


def test_signing_in_leads_to_where_one_wanted_to_go_and_signing_out_ends_it(
    service: Service, open_page: Opened
) -> None:
    page = open_page(service, None, "/dead")
    page.get_by_label("Name").fill("otto")
    page.get_by_label("Password").fill("wrong wrong wrong")
    page.get_by_role("button", name="Sign in").first.click()
    expect(page.get_by_role("alert")).to_contain_text("did not match")
    page.get_by_label("Name").fill("otto")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Sign in").first.click()
    expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/dead")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_everything_works_without_javascript(service: Service, open_page: Opened) -> None:
    receipt = service.send("evt_plain", "charge.failed", data={"object": {"id": "card_plain"}})
    until_settled(service, receipt)
    page = open_page(service, java_script_enabled=False, path=f"/events/{receipt}")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status")).to_contain_text("It was replayed")
    until_settled(service, receipt)
    page.goto("/replay?object=card_plain")
    page.get_by_role("button", name="Replay 1 event").click()
    page.wait_for_url("**/replays/*")
    for _ in range(50):
        if page.get_by_role("heading", name="Replayed").count():
            break
        page.reload()
    expect(page.get_by_role("heading", name="Replayed")).to_be_visible()


def tab(page: Page, times: int) -> str:
    for _ in range(times):
        page.keyboard.press("Tab")
    return page.evaluate("document.activeElement.textContent.trim()")


def test_the_keyboard_reaches_everything_in_order(sqlite_service: Service, open_page: Opened) -> None:
    sqlite_service.send("evt_keys")
    page = open_page(sqlite_service, path="/events")
    assert tab(page, 1) == "Skip to content"
    assert tab(page, 1) == "Oncehook"
    assert [tab(page, 1) for _ in range(5)] == ["Overview", "Events", "Dead letters", "Sources", "Audit"]
    assert tab(page, 1) == "Sign out"
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    page.goto("/events")
    tab(page, 1)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
