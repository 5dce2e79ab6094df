"""Takes the screenshots of the dashboard for the documentation from a real run: `python -m docs.screens` (a minute)."""

import random
import tempfile
import time
from pathlib import Path
from typing import Literal

import httpx
from playwright.sync_api import Page, sync_playwright

from oncehook.providers import definition as providers
from oncehook.providers.sample import compose
from oncehook.web.auth import hash_password
from tests.support import programs
from tests.support.serve import Process
from tests.support.servers import run_sql

IMAGES = Path(__file__).parent / "images"
SECRETS = {"stripe": "whsec_picture", "github": "github-secret", "shopify": "shop-secret"}
TYPES = {"stripe": ["invoice.paid", "invoice.paid", "charge.failed"], "github": ["push"], "shopify": ["orders/create"]}
PASSWORD = "only for the picture"
CONFIGURATION = f"""
database = "sqlite:///inbox.db"
log_level = "error"
[sources.sendgrid]
verify = "none"
email = true
[dashboard]
public_url = "https://hooks.example.com"
[dashboard.users.jane]
password = "{hash_password(PASSWORD, cost=4)}"
role = "operator"
"""
HANDLERS = """
from oncehook import Fail, Inbox, RetryLater
inbox = Inbox()

@inbox.effect
async def send_receipt(effect, to, invoice, amount):
    if effect.id % 9 == 0:
        raise Fail(f"550 5.1.1 no such user: {to}")
    if effect.id % 7 == 0:
        raise RetryLater("the mail server is busy", after=600)

@inbox.subscribe("billing")
async def billing(effect, payload): ...

@inbox.on("stripe", "invoice.paid")
async def invoice_paid(event, tx):
    await tx.fetch("SELECT 1")
    number = event.receipt % 1000
    await event.effect(f"receipt-email:in_{number}", send_receipt, to=f"customer{number}@example.com",
                       invoice=event.object_id, amount={"value": 4200, "currency": "eur"})
    await event.publish("billing", {"invoice": event.object_id}, key=f"billing:in_{number}")

@inbox.on("github", "*")
@inbox.on("shopify", "*")
async def note(event): ...

@inbox.on("stripe", "charge.failed")
async def charge_failed(event, tx):
    raise Fail(f"the ledger has no customer for {event.object_id}")
"""
WIDTH = 1180
SCREENS: list[tuple[str, str, Literal["light", "dark"], int]] = [
    ("overview", "/?range=1h", "light", 880),
    ("event", "charge.failed", "dark", 760),
    ("effects", "/effects", "light", 760),
    ("email", "/email", "dark", 900),
    ("sources", "/sources", "light", 900),
]
"""Name of the picture, path or event type, color scheme, height."""

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
            send_events(service.port)
            send_email_events(service.port)
            spread_over_an_hour(f"sqlite:///{folder / 'inbox.db'}")
            take_screenshots(service.port)
        finally:
            service.kill()


def send_events(port: int) -> None:
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


def send_email_events(port: int) -> None:
    """Send a month of email events: most messages are delivered, some are opened, bounce or cause complaints."""
    events, now = [], int(time.time())
    for n in range(900):
        at = now - int(random.triangular(0, 29, 4) * 86400)
        facts = {
            "email": f"customer{n}@{random.choice(['example.com', 'example.org', 'mail.example'])}",
            "sg_message_id": f"msg-{n:04}.recvd-1",
            "category": [random.choice(["receipt", "receipt", "newsletter", "welcome"])],
        }
        ends = ["delivered"] * 16 + ["bounce", "spamreport", "deferred", "dropped"]
        for step, event in enumerate(["processed", random.choice(ends)] + ["open"] * (n % 3 == 0)):
            more = (
                {"type": "bounce", "status": "5.1.1", "reason": "550 5.1.1 no such user here"}
                if event == "bounce"
                else {}
            )
            events.append({**facts, **more, "event": event, "timestamp": at + step, "sg_event_id": f"{n}-{step}"})
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for start in range(0, len(events), 500):
            client.post("/webhooks/sendgrid", json=events[start : start + 500])
        stray = compose(providers.built_in("stripe"), "invoice.paid", SECRETS["shopify"], now=time.time())
        client.post("/webhooks/stripe", content=stray.body, headers=stray.headers)
    time.sleep(3)


def spread_over_an_hour(database: str) -> None:
    """Spread the receipts over the last hour."""
    for table, column in (("webhook_receipts", "received_at"), ("webhook_deliveries", "received_at")):
        for (id,) in run_sql(database, f"SELECT id FROM {table}"):
            seconds = min(3500, int(abs(random.gauss(0, 1500))) + random.randint(0, 200))
            run_sql(database, SHIFT.format(table=table, column=column, seconds=seconds, id=id))
    run_sql(database, "UPDATE webhook_receipts SET occurred_at = received_at")
    run_sql(database, "UPDATE webhook_receipts SET failed_at = received_at WHERE failed_at IS NOT NULL")
    for id, receipt in run_sql(database, "SELECT id, receipt_id FROM webhook_past_attempts"):
        run_sql(
            database,
            "UPDATE webhook_past_attempts SET ended_at = (SELECT received_at FROM webhook_receipts r "
            f"WHERE r.id = {receipt}) WHERE id = {id}",
        )


def take_screenshots(port: int) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.find("chromium"), args=["--no-sandbox"])
        for name, path, scheme, height in SCREENS:
            page = browser.new_page(
                base_url=f"http://127.0.0.1:{port}",
                viewport={"width": WIDTH, "height": height},
                color_scheme=scheme,
            )
            sign_in(page)
            page.goto(path if path.startswith("/") else "/events?status=failed")
            if not path.startswith("/"):
                page.locator("td.what a").nth(2).click()
                page.wait_for_url("**/events/*")
            if name == "sources":
                page.locator("#source-stripe").get_by_text("Pause processing").click()
                page.get_by_role("button", name="Pause stripe").click()
                page.goto(path)
                page.evaluate("scrollTo(0, document.body.scrollHeight)")
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
