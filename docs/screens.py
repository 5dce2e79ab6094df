"""The pictures of the dashboard in the docs, out of a real run: `python -m docs.screens` (half a minute)."""

import random
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from oncehook import providers
from oncehook.sample import compose
from oncehook.web.auth import hash_password
from tests.servers import ask, chromium_binary
from tests.serving import Process

IMAGES = Path(__file__).parent / "images"
SECRETS = {"stripe": "whsec_picture", "github": "github-secret", "shopify": "shop-secret"}
TYPES = {"stripe": ["invoice.paid", "invoice.paid", "charge.failed"], "github": ["push"], "shopify": ["orders/create"]}
PASSWORD = "only for the picture"
CONFIGURATION = f"""
database = "sqlite:///inbox.db"
log_level = "error"
[dashboard]
public_url = "https://hooks.example.com"
[dashboard.users.jane]
password = "{hash_password(PASSWORD, cost=4)}"
role = "operator"
"""
HANDLERS = """
from oncehook import Fail, Inbox
inbox = Inbox()

@inbox.on("stripe", "invoice.paid")
async def invoice_paid(event, tx):
    await tx.fetch("SELECT 1")

@inbox.on("stripe", "charge.failed")
async def charge_failed(event, tx):
    raise Fail(f"the ledger has no customer for {event.object_id}")
"""
SHIFT = """UPDATE {table} SET {column} = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || {seconds} || ' seconds')
WHERE id = {id}"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="oncehook-screens-") as name:
        folder = Path(name)
        sources = "".join(f'[sources.{source}]\nsecrets = ["{key}"]\n' for source, key in SECRETS.items())
        (folder / "oncehook.toml").write_text(CONFIGURATION + sources)
        (folder / "hooks.py").write_text(HANDLERS)
        service = Process(folder / "oncehook.toml", app="hooks:inbox", cwd=folder)
        try:
            fill(service.port)
            spread(f"sqlite:///{folder / 'inbox.db'}")
            take(service.port)
        finally:
            service.kill()


def fill(port: int) -> None:
    random.seed(7)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for n in range(400):
            source = random.choice(["stripe", "stripe", "stripe", "github", "shopify"])
            type_ = random.choice(TYPES[source][: 2 + (n % 12 == 0)])
            sample = compose(providers.built_in(source), type_, SECRETS[source], now=time.time())
            for _ in range(1 + (random.random() < 0.2)):
                client.post(f"/webhooks/{source}", content=sample.body, headers=sample.headers)
            if n % 80 == 0:
                client.post(f"/webhooks/{source}", content=sample.body + b" ", headers=sample.headers)
    time.sleep(2)


def spread(database: str) -> None:
    """Have it all arrive over the last hour."""
    for table, column in (("webhook_receipts", "received_at"), ("webhook_deliveries", "received_at")):
        for (id,) in ask(database, f"SELECT id FROM {table}"):
            seconds = min(3500, int(abs(random.gauss(0, 1500))) + random.randint(0, 200))
            ask(database, SHIFT.format(table=table, column=column, seconds=seconds, id=id))
    ask(database, "UPDATE webhook_receipts SET occurred_at = received_at")
    for id, receipt in ask(database, "SELECT id, receipt_id FROM webhook_attempts"):
        ask(
            database,
            "UPDATE webhook_attempts SET ended_at = (SELECT received_at FROM webhook_receipts r "
            f"WHERE r.id = {receipt}) WHERE id = {id}",
        )


def take(port: int) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_binary(), args=["--no-sandbox"])
        for name, path, scheme, size in [
            ("overview", "/", "light", (1180, 880)),
            ("event", "charge.failed", "dark", (1180, 760)),
        ]:
            options = {"width": size[0], "height": size[1]}
            page = browser.new_page(base_url=f"http://127.0.0.1:{port}", viewport=options, color_scheme=scheme)
            sign_in(page)
            page.goto(path if path.startswith("/") else "/events?status=failed")
            if not path.startswith("/"):
                page.locator("td.grows a").nth(2).click()
                page.wait_for_url("**/events/*")
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


def sign_in(page: Page) -> None:
    page.goto("/sign-in")
    page.get_by_label("Name").fill("jane")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").first.click()
    page.wait_for_url("**/")


if __name__ == "__main__":
    main()
