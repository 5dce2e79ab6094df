"""Takes the screenshot of the admin for docs/django.md from the example project: `python -m docs.django_screen`."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.support import ROOT, programs
from tests.support.servers import free_port
from tests.support.waiting import wait_until

IMAGE = Path(__file__).parent / "images" / "django-admin.png"
PASSWORD = "only for the picture"
FILL = """
from django.contrib.auth.models import User
from shop.models import Invoice
User.objects.create_superuser("jane", password="only for the picture")
Invoice.objects.create(number="in_1042", email="customer@example.com")
"""
EVENTS = (("invoice.paid", "in_1042"), ("invoice.paid", "in_1043"), ("invoice.voided", "in_1042"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="oncehook-django-screen-") as name:
        folder = Path(name) / "shop"
        shutil.copytree(ROOT / "examples/django_shop", folder)
        environment = {**os.environ, "STRIPE_WEBHOOK_SECRET": "whsec_picture"}
        port = free_port()

        def manage(*arguments: str) -> None:
            command = [sys.executable, "manage.py", *arguments]
            subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)

        manage("migrate")
        manage("shell", "-c", FILL)
        command = [sys.executable, "manage.py", "runserver", "--noreload", str(port)]
        server = subprocess.Popen(command, cwd=folder, env=environment)
        try:
            address = f"http://127.0.0.1:{port}"
            for type_, number in EVENTS:
                data = ("--set", f"data.object.id={number}", "--set", "data.object.amount_paid=4200")
                _send(manage, "oncehook", "send", "stripe", type_, "--to", f"{address}/webhooks/stripe", *data)
            take_screenshot(address)
        finally:
            server.kill()
            server.wait()


def _send(manage: Callable[..., None], *arguments: str) -> None:
    def sent() -> bool:
        manage(*arguments)
        return True

    wait_until(sent, "the server answers", ignore=(subprocess.CalledProcessError,))


def take_screenshot(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.find("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 800}, color_scheme="light")
        page.goto(f"{address}/admin/login/?next=/admin/oncehook/event/")
        page.fill("#id_username", "jane")
        page.fill("#id_password", PASSWORD)
        page.click("[type=submit]")
        page.wait_for_url("**/admin/oncehook/event/")
        wait_until(lambda: "done" in _reload(page, f"{address}/admin/oncehook/effect/"), "the effect is done")
        page.goto(f"{address}/admin/oncehook/event/")
        page.click("tr:has-text('in_1042'):has-text('invoice.paid') .field-event_id a")
        page.wait_for_selector("text=Rehearse")
        page.screenshot(path=IMAGE)
        browser.close()


def _reload(page: Page, address: str) -> str:
    page.goto(address)
    return page.content()


if __name__ == "__main__":
    main()
