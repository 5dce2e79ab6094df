"""A real browser, and real services to look at: one of each for all of these tests, and a context for each test.

Playwright's loop runs in the thread of the tests, where no other may run then: it ends with this folder.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from oncehook.web.auth import hash_password, hash_token
from tests.support import programs
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import Process
from tests.support.servers import Postgres, ask, sqlite_file

PASSWORD = "correct horse battery"
HANDLERS = """
from oncehook import Fail, Inbox, Retry

inbox = Inbox()


@inbox.on("stripe", "invoice.paid")
async def paid(event, tx):
    mark = "?" if inbox._runtime.settings.database.startswith("sqlite") else "$1"
    await tx.execute(f"INSERT INTO paid VALUES ({mark})", event.object_id)


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
async def loud(event, tx):
    raise Fail(str(event["data.object.error"]))
"""
CONFIGURATION = """
database = "{database}"
log_level = "error"

[sources.stripe]
secrets = ["whsec_test"]

[sources.sendgrid]
verify = "none"
email = true

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
    """`oncehook serve` with handlers, and what was sent to it."""

    def __init__(self, folder: Path, database: str) -> None:
        self.database = database
        config = folder / "oncehook.toml"
        hashes = {"password": hash_password(PASSWORD, cost=4), "token": hash_token("token-of-ci")}
        config.write_text(CONFIGURATION.format(database=database, **hashes))
        (folder / "watched.py").write_text(HANDLERS)
        self.process = Process(config, cwd=folder, app="watched:inbox")
        self.address = f"http://127.0.0.1:{self.process.port}"
        self.client = httpx.Client(base_url=self.address, timeout=30)
        self.sessions: dict[str, str] = {}
        ask(database, "CREATE TABLE paid (id TEXT)")

    def send(
        self, event_id: str, type_: str = "invoice.paid", headers: dict[str, str] | None = None, **more: Any
    ) -> int:
        body = stripe_body(event_id, type_, **more)
        sent = {**stripe_headers(body), **(headers or {})}
        encoded = {name.encode("latin-1"): value.encode("latin-1", "replace") for name, value in sent.items()}
        answer = self.client.post("/webhooks/stripe", content=body, headers=encoded)
        return int(answer.json()["receipt"])

    def mailed(self, *events: dict[str, Any]) -> None:
        """Email events of SendGrid, in one delivery."""
        self.client.post("/webhooks/sendgrid", json=list(events))

    def api(self, path: str) -> Any:
        return self.client.get(path, headers={"authorization": "Bearer token-of-ci"}).json()

    def session(self, who: str) -> str:
        """The cookie of somebody who signed in before."""
        if who not in self.sessions:
            form = {"name": who, "password": PASSWORD}
            answer = httpx.post(f"{self.address}/sign-in", data=form, headers={"origin": self.address}, timeout=30)
            self.sessions[who] = answer.cookies["oncehook_session"]
        return self.sessions[who]


@pytest.fixture(scope="package", params=[pytest.param("sqlite", marks=pytest.mark.torture), "postgres"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from _started(request, tmp_path_factory, request.param)


@pytest.fixture(scope="package")
def sqlite_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from _started(request, tmp_path_factory, "sqlite")


def _started(request: pytest.FixtureRequest, folders: pytest.TempPathFactory, kind: str) -> Iterator[Service]:
    folder = folders.mktemp("service")
    server: Postgres = request.getfixturevalue("postgres")
    service = Service(folder, sqlite_file(folder / "inbox.db") if kind == "sqlite" else server.database(migrated=True))
    try:
        yield service
    finally:
        service.client.close()
        service.process.kill()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.find("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


Opened = Callable[..., Page]


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Opened]:
    """A page in a context of its own, signed in. What it logs, loads and asks is kept on it, and must be harmless."""
    contexts: list[BrowserContext] = []
    harm: list[str] = []

    def open_it(service: Service, who: str | None = "otto", path: str = "/", **options: Any) -> Page:
        context = chromium.new_context(base_url=service.address, viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: (harm.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("pageerror", lambda error: harm.append(f"an error: {error}"))
        page.on(
            "console",
            lambda message: (
                harm.append(message.text)
                if message.type == "error" and "the server responded" not in message.text
                else None
            ),
        )
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((service.address, "blob:", "data:")) else harm.append(asked.url),
        )
        if who is not None:
            context.add_cookies([{"name": "oncehook_session", "value": service.session(who), "url": service.address}])
        page.goto(path)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert harm == []
