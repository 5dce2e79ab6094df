"""Every page and every action in a real browser, with and without JavaScript. The long runs repeat this on SQLite."""

import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Service
from tests.support.email_payloads import JANE, SG, sendgrid
from tests.support.events import stripe_body, stripe_headers
from tests.support.servers import run_sql
from tests.support.waiting import wait_until

NAVIGATION = ["Overview", "Events", "Dead letters", "Effects", "Email", "Sources", "Audit"]
pytestmark = pytest.mark.xdist_group("browser")


def test_getting_started_page_shows_the_first_event_without_a_reload(service: Service, open_page: OpenPage) -> None:
    page = open_page(service)
    if service.api("/api/events")["events"] == []:
        expect(page.get_by_role("heading", name="No events yet")).to_be_visible()
        expect(page.get_by_text(f"{service.address}/webhooks/stripe").first).to_be_visible()
        service.send("evt_first")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("received in the last (hour|15 minutes)"))).to_be_visible()
    page.get_by_role("link", name="Last week").click()
    expect(page.get_by_role("link", name="Last week")).to_have_attribute("aria-current", "true")


def test_events_are_filtered_searched_and_paged(service: Service, open_page: OpenPage) -> None:
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
    expect(page.get_by_role("alert")).to_contain_text("since must be an age")


def test_list_of_events_updates_by_itself(service: Service, open_page: OpenPage) -> None:
    service.send("evt_before_live")
    page = open_page(service, path="/events")
    expect(page.get_by_text("evt_before_live")).to_be_visible()
    service.send("evt_live")
    expect(page.get_by_text("evt_live")).to_be_visible()


def test_event_is_rehearsed_replayed_and_erased(service: Service, open_page: OpenPage) -> None:
    receipt = service.send("evt_one", data={"object": {"id": "in_one"}})
    service.wait_until_settled(receipt)
    page = open_page(service, path=f"/events/{receipt}")
    expect(page.get_by_role("heading", name="invoice.paid")).to_be_visible()
    expect(page.locator(".body")).to_contain_text('"id": "evt_one"')
    page.get_by_role("button", name="Rehearse").click()
    expect(page.locator(".diff .added")).to_contain_text("INSERT INTO paid")
    assert run_sql(service.database, "SELECT count(*) FROM paid WHERE id = 'in_one'") == [(1,)]
    page.goto(f"/events/{receipt}")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status")).to_contain_text("replayed. ")
    expect(page.locator(".timeline")).to_contain_text("user:otto")
    service.wait_until_settled(receipt)
    assert run_sql(service.database, "SELECT count(*) FROM paid WHERE id = 'in_one'") == [(2,)]
    with page.expect_download() as download:
        page.get_by_role("link", name="Download raw payload").click()
    assert download.value.suggested_filename == f"event-{receipt}.txt"
    page.get_by_text("Erase payload").click()
    page.get_by_role("button", name="Erase permanently").click()
    expect(page.get_by_role("status")).to_contain_text("Payload erased")
    page.get_by_role("link", name="Audit").click()
    expect(page.locator("tbody")).to_contain_text("forget")


def test_dead_letters_with_one_error_are_replayed_together(service: Service, open_page: OpenPage) -> None:
    receipts = [service.send(f"evt_dead_{n}", "charge.failed", data={"object": {"id": f"card_{n}"}}) for n in range(3)]
    service.wait_until_settled(*receipts)
    page = open_page(service, path="/dead")
    row = page.locator("tr", has_text="was declined")
    expect(row).to_contain_text("3")
    row.get_by_role("link", name="Replay these …").click()
    expect(page.get_by_role("heading", name="Replay 3 events?")).to_be_visible()
    page.get_by_role("button", name="Replay 3 events").click()
    expect(page.get_by_role("heading", name="Replay complete")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("3 failed again")


def test_source_explains_how_to_rotate_its_secret(service: Service, open_page: OpenPage) -> None:
    page = open_page(service, path="/sources")
    expect(page.get_by_role("heading", name="stripe")).to_be_visible()
    card = page.locator("#source-stripe")
    card.get_by_text("Rotate the secret").click()
    expect(card.get_by_text("Both secrets are now accepted")).to_be_visible()
    page.get_by_role("link", name="Audit").click()
    expect(page.locator("tbody tr").first).to_be_visible()


def test_failed_effects_are_shown_and_replayed(service: Service, open_page: OpenPage) -> None:
    receipt = service.send("evt_mail", "customer.created", data={"object": {"id": "cus_1", "mail": ["jane", "joe"]}})
    wait_until(lambda: service.api(f"/api/effects?receipt={receipt}&status=failed")["effects"][1:] != [])
    page = open_page(service, path="/effects?target=mail")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="joe 1 evt_mail").click()
    expect(page.locator(".body")).to_contain_text('"to": "joe"')
    expect(page.locator("pre.error")).to_contain_text("no mailbox of joe")
    expect(page.get_by_role("link", name="customer.created")).to_have_attribute("href", f"/events/{receipt}")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status")).to_contain_text("replayed. ")
    wait_until(lambda: len(service.api(f"/api/effects?receipt={receipt}&status=failed")["effects"]) == 2)
    page.goto("/effects?target=mail")
    page.get_by_role("link", name="Replay failed effects …").click()
    expect(page.get_by_role("heading", name="Replay 2 effects?")).to_be_visible()
    page.get_by_role("button", name="Replay 2 effects").click()
    expect(page.get_by_role("status")).to_contain_text("2 replayed")
    page.get_by_role("link", name="Audit").click()
    expect(page.locator("tbody tr").first).to_contain_text("replay effects")


def test_message_is_looked_up_and_suppressions_are_removed_and_added(service: Service, open_page: OpenPage) -> None:
    now = int(time.time())
    service.send_email_events(
        sendgrid("delivered", now), sendgrid("bounce", now + 1, type="bounce", reason="550 unknown user")
    )
    wait_until(lambda: service.api("/api/email/suppressed")["suppressions"] != [])
    page = open_page(service, path="/email")
    expect(page.get_by_role("img", name=re.compile("1 bounced in the last 30 days"))).to_be_visible()
    page.get_by_role("link", name="By domain").click()
    expect(page.get_by_role("rowheader", name="example.com")).to_be_visible()
    page.get_by_label("Look up a message").fill(SG)
    page.get_by_role("button", name="Look up").click()
    expect(page.get_by_role("region", name="Status for each recipient")).to_contain_text("bounced (hard)")
    page.get_by_role("rowheader").get_by_role("link", name=JANE).click()
    page.get_by_text("Remove").first.click()
    page.get_by_label("Note").last.fill("has a mailbox again")
    page.get_by_role("button", name="Remove suppression").click()
    expect(page.get_by_role("status")).to_contain_text("Suppression removed")
    page.get_by_text("Suppress an address").click()
    page.get_by_label("Address").fill("joe@example.com")
    page.get_by_label("Note").first.fill("asked by phone")
    page.get_by_role("button", name="Suppress").click()
    expect(page.get_by_role("region", name="Suppressions")).to_contain_text("asked by phone")
    assert [one["address"] for one in service.api("/api/email/suppressed")["suppressions"]] == ["joe@example.com"]


def test_source_explains_its_rejection_and_is_paused_and_resumed(service: Service, open_page: OpenPage) -> None:
    service.wait_until_settled(service.send("evt_before_the_pause"))
    before = run_sql(service.database, "SELECT max(id) FROM webhook_rejections")

    def is_sampled() -> bool:
        """At most one rejection per second is sampled, so some are skipped."""
        body = stripe_body("evt_wrong")
        service.client.post("/webhooks/stripe", content=body, headers=stripe_headers(body, "another"))
        return run_sql(service.database, "SELECT max(id) FROM webhook_rejections") != before

    wait_until(is_sampled)
    page = open_page(service, path="/sources")
    card = page.locator("#source-stripe")

    def is_explained() -> bool:
        """The page caches the findings for a short time."""
        page.reload()
        return "The signature is valid with a secret of source calendly." in card.inner_text()

    wait_until(is_explained)
    expect(page.locator("#source-calendly")).to_contain_text("does not confirm this signature scheme")
    card.get_by_text("Pause processing").click()
    card.get_by_role("button", name="Pause stripe").click()
    expect(page.locator("main > .notice")).to_contain_text("Source paused")
    receipt = service.send("evt_paused")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".warn-box")).to_contain_text("Paused: stripe")
    assert service.api(f"/api/events/{receipt}")["status"] == "received"
    page.locator(".warn-box").get_by_role("link", name="stripe").click()
    page.get_by_role("button", name="Resume stripe").click()
    expect(page.locator("main > .notice")).to_contain_text("Source resumed")
    service.wait_until_settled(receipt)


def test_viewer_sees_no_buttons_that_change_anything(service: Service, open_page: OpenPage) -> None:
    receipt = service.send("evt_viewed")
    service.wait_until_settled(receipt)
    page = open_page(service, "vera", f"/events/{receipt}")
    expect(page.get_by_role("heading", name="invoice.paid")).to_be_visible()
    assert page.get_by_role("button").all_inner_texts() in (
        ["Sign out"],
        ["Sign out", "Copy"],
        ["Sign out", "Copy", "Copy"],
    )
    page.goto("/events?status=processed")
    expect(page.get_by_role("link", name="Replay these …")).to_have_count(0)
    for path in ("/sources", "/email/suppressions", "/effects?status=failed"):
        page.goto(path)
        assert set(page.get_by_role("button").all_inner_texts()) <= {"Sign out", "Copy", "Search", "Filter"}
        expect(page.get_by_role("link", name="Replay failed effects")).to_have_count(0)


def test_sign_in_continues_to_the_requested_page_and_sign_out_ends_the_session(
    service: Service, open_page: OpenPage
) -> None:
    page = open_page(service, None, "/dead")
    page.get_by_label("Name").fill("otto")
    page.get_by_label("Password").fill("wrong wrong wrong")
    page.get_by_role("button", name="Sign in").first.click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong name, password or token")
    page.get_by_label("Name").fill("otto")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Sign in").first.click()
    expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/dead")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_replays_work_without_javascript(service: Service, open_page: OpenPage) -> None:
    receipt = service.send("evt_plain", "charge.failed", data={"object": {"id": "card_plain"}})
    service.wait_until_settled(receipt)
    page = open_page(service, java_script_enabled=False, path=f"/events/{receipt}")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status")).to_contain_text("replayed. ")
    service.wait_until_settled(receipt)
    page.goto("/replay?object=card_plain")
    page.get_by_role("button", name="Replay 1 event").click()
    page.wait_for_url("**/replays/*")
    for _ in range(50):
        if page.get_by_role("heading", name="Replay complete").count():
            break
        page.reload()
    expect(page.get_by_role("heading", name="Replay complete")).to_be_visible()


def tab(page: Page, times: int) -> str:
    for _ in range(times):
        page.keyboard.press("Tab")
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def test_keyboard_reaches_the_controls_in_order(sqlite_service: Service, open_page: OpenPage) -> None:
    sqlite_service.send("evt_keys")
    page = open_page(sqlite_service, path="/events")
    assert tab(page, 1) == "Skip to content"
    assert tab(page, 1) == "Oncehook"
    assert [tab(page, 1) for _ in NAVIGATION] == NAVIGATION
    assert tab(page, 1) == "Sign out"
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    page.goto("/events")
    tab(page, 1)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
