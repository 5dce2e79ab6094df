"""The dashboard mounted in a FastAPI app, in a real browser: sign-in, live updates and forms."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Request, expect

from oncehook.web.auth import hash_password
from tests.browser.conftest import PASSWORD
from tests.support.events import stripe_body, stripe_headers
from tests.support.servers import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("browser")
SHOP = """
from fastapi import FastAPI
from oncehook import Inbox

inbox = Inbox()
inbox.source("stripe", secrets=["whsec_test"])


@inbox.on("stripe", "*")
async def handle(event): ...


app = FastAPI(lifespan=inbox.lifespan)
app.mount("/hooks-admin", inbox.dashboard)
app.mount("/webhooks", inbox)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "oncehook.toml").write_text(
        f'[dashboard.users.otto]\npassword = "{hash_password(PASSWORD, cost=4)}"\nrole = "operator"\n'
    )
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, cwd=tmp_path)
    address = f"http://127.0.0.1:{port}"

    def is_serving() -> bool:
        try:
            return httpx.get(f"{address}/hooks-admin/sign-in", timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(is_serving, "the app serves the sign-in page")
    yield address
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()


def send(address: str, event_id: str) -> None:
    body = stripe_body(event_id)
    httpx.post(f"{address}/webhooks/stripe", content=body, headers=stripe_headers(body), timeout=30).raise_for_status()


def is_aborted(request: Request) -> bool:
    """Whether the page itself ended a request, because the user went to another page."""
    return "/live" in request.url or request.failure == "net::ERR_ABORTED"


@pytest.mark.rest
def test_mounted_dashboard_works_like_the_one_of_serve(shop: str, chromium: Browser) -> None:
    page = chromium.new_page(base_url=shop)
    incidents: list[str] = []
    page.on("pageerror", lambda error: incidents.append(str(error)))
    page.on("requestfailed", lambda request: None if is_aborted(request) else incidents.append(request.url))
    page.on("response", lambda response: incidents.append(response.url) if response.status >= 400 else None)
    page.goto("/hooks-admin/events")
    page.get_by_label("Name").fill("otto")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").first.click()
    expect(page).to_have_url(f"{shop}/hooks-admin/events")
    send(shop, "evt_live")
    expect(page.get_by_text("evt_live")).to_be_visible()
    page.get_by_role("link", name="invoice.paid").first.click()
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status").first).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.tile')).borderRadius") != "0px"
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{shop}/hooks-admin/sign-in")
    assert page.context.cookies() == []
    assert incidents == []
