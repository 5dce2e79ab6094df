"""A real browser and real services. All tests of this folder share them; each test gets its own browser context.

Playwright runs an event loop in the thread of the tests, so no asynchronous test can run in this folder.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, sync_playwright

from oncehook.web.auth import hash_password, hash_token
from tests.support import programs
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import Process
from tests.support.servers import Postgres, run_sql, sqlite_file
from tests.support.waiting import wait_until

PASSWORD = "correct horse battery"
HANDLERS = """
from oncehook import Fail, Inbox, Retry

inbox = Inbox()


@inbox.on("stripe", "invoice.paid")
async def paid(event, tx):
    placeholder = "?" if inbox._runtime.settings.database.startswith("sqlite") else "$1"
    await tx.execute(f"INSERT INTO paid VALUES ({placeholder})", event.object_id)


@inbox.on("stripe", "charge.failed")
async def declined(event, tx):
    raise Fail(f"card {event.object_id} was declined")


@inbox.effect
async def mail(effect, to, **more):
    raise Fail(f"no mailbox of {to}")


@inbox.on("stripe", "customer.created")
async def created(event):
    for number, to in enumerate(event["data.object.mail"]):
        await event.effect(f"{to[:200]} {number} {event.id}", mail, to=to, **{to: event["data.object.mail"]})


@inbox.on("stripe", "*")
async def fail_with_the_text_of_the_sender(event, tx):
    raise Fail(str(event["data.object.error"]))
"""
TEAM_HANDLERS = """
from oncehook import Fail, Inbox, RetryLater

inbox = Inbox()


@inbox.on("stripe", "invoice.paid")
async def paid(event): ...


@inbox.on("stripe", "invoice.*", consumer="analytics")
async def track(event):
    if event.attempt == 1:
        raise RetryLater("the warehouse is busy", after=600)


@inbox.on("stripe", "invoice.paid", consumer="ledger")
async def book(event):
    if not event.replays:
        raise Fail(f"no account for {event.object_id}")
"""
"""Handlers of three consumers: `main` succeeds, `analytics` has to retry, and `ledger` fails until it is replayed."""

CONFIGURATION = """
database = "{database}"
log_level = "error"

[sources.stripe]
secrets = ["whsec_test"]

[sources.sendgrid]
verify = "none"
email = true

[sources.shops]
provider = "shopify"
tenants = true

[sources.calendly]
secrets = ["one", "another"]

[dashboard.users.otto]
password = "{password}"
role = "operator"

[dashboard.users.vera]
password = "{password}"
role = "viewer"

[dashboard.tokens.ci]
token = "{token}"
"""


class Service:
    """`oncehook serve` with handlers, and a client that sends to it."""

    def __init__(self, folder: Path, database: str, handlers: str = HANDLERS) -> None:
        self.database = database
        config = folder / "oncehook.toml"
        hashes = {"password": hash_password(PASSWORD, cost=4), "token": hash_token("token-of-ci")}
        config.write_text(CONFIGURATION.format(database=database, **hashes))
        (folder / "watched.py").write_text(handlers)
        self.process = Process(config, cwd=folder, app="watched:inbox")
        self.address = f"http://127.0.0.1:{self.process.port}"
        self.client = httpx.Client(verify=False, base_url=self.address, timeout=30)
        self.sessions: dict[str, str] = {}
        run_sql(database, "CREATE TABLE paid (id TEXT)")

    def send(
        self, event_id: str, type_: str = "invoice.paid", headers: dict[str, str] | None = None, **more: Any
    ) -> int:
        """Sends a Stripe event and returns its receipt."""
        body = stripe_body(event_id, type_, **more)
        fields = {**stripe_headers(body), **(headers or {})}
        encoded = {name.encode("latin-1"): value.encode("latin-1", "replace") for name, value in fields.items()}
        response = self.client.post("/webhooks/stripe", content=body, headers=encoded)
        return int(response.json()["receipt"])

    def send_email_events(self, *events: dict[str, Any]) -> None:
        """Sends email events of SendGrid in one delivery."""
        self.client.post("/webhooks/sendgrid", json=list(events))

    def api(self, path: str) -> Any:
        return self.client.get(path, headers={"authorization": "Bearer token-of-ci"}).json()

    def page(self, path: str) -> str:
        """The HTML of a page, as the operator gets it."""
        return self.client.get(path, headers={"cookie": f"oncehook_session={self.session('otto')}"}).text

    def session(self, user: str) -> str:
        """The cookie of a signed-in user."""
        if user not in self.sessions:
            form = {"name": user, "password": PASSWORD}
            response = httpx.post(f"{self.address}/sign-in", data=form, headers={"origin": self.address}, timeout=30)
            self.sessions[user] = response.cookies["oncehook_session"]
        return self.sessions[user]

    def wait_until_settled(self, *receipts: int) -> None:
        """Waits until every receipt is processed or failed."""

        def are_settled() -> bool:
            return all(self.api(f"/api/events/{id}")["status"] in ("processed", "failed") for id in receipts)

        wait_until(are_settled, "a worker settles the receipts")


@pytest.fixture(scope="package", params=[pytest.param("sqlite", marks=pytest.mark.rest), "postgres"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from _started(request, tmp_path_factory, request.param)


@pytest.fixture(scope="package")
def sqlite_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from _started(request, tmp_path_factory, "sqlite")


@pytest.fixture(scope="package")
def team_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with three consumers."""
    yield from _started(request, tmp_path_factory, "sqlite", TEAM_HANDLERS)


def _started(
    request: pytest.FixtureRequest, folders: pytest.TempPathFactory, kind: str, handlers: str = HANDLERS
) -> Iterator[Service]:
    folder = folders.mktemp("service")
    if kind == "sqlite":
        database = sqlite_file(folder / "inbox.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        database = server.database(migrated=True)
    service = Service(folder, database, handlers)
    try:
        yield service
    finally:
        service.client.close()
        service.process.kill()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=programs.find("chromium"),
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-gpu-compositing",
                "--disable-background-networking",
                "--disable-component-update",
            ],
        )
        yield browser
        browser.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[OpenPage]:
    """Opens a page in a new context, signed in. A dialog, an error or a request to another host fails the test."""
    contexts: list[BrowserContext] = []
    incidents: list[str] = []

    def open_(service: Service, user: str | None = "otto", path: str = "/", **options: Any) -> Page:
        context = chromium.new_context(base_url=service.address, viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        watch(page, service.address, incidents)
        if user is not None:
            context.add_cookies([{"name": "oncehook_session", "value": service.session(user), "url": service.address}])
        page.goto(path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert incidents == [], "a page must show no dialog, log no error and load nothing from another host"


def watch(page: Page, address: str, incidents: list[str]) -> None:
    """Records dialogs, errors and requests to other hosts."""

    def on_dialog(dialog: Dialog) -> None:
        incidents.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and "the server responded" not in message.text:
            incidents.append(message.text)

    def on_request(request: Request) -> None:
        if not request.url.startswith((address, "blob:", "data:")):
            incidents.append(request.url)

    page.on("dialog", on_dialog)
    page.on("pageerror", lambda error: incidents.append(f"an error: {error}"))
    page.on("console", on_console)
    page.on("request", on_request)
