"""`manage.py oncehook …` is the whole command line, with the project's inbox."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import call_command

from oncehook.testing import Bench
from tests.support import ROOT
from tests.support.django_database import django_database
from tests.support.django_shop.models import Invoice
from tests.support.events import STRIPE_SECRET, Rows, stripe_body, stripe_headers
from tests.support.waiting import wait_until


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_:
        call_command("oncehook", *arguments)
    captured = capsys.readouterr()
    code = exit_.value.code
    return code if isinstance(code, int) else 1, captured.out + captured.err


def test_commands_use_the_inbox_of_the_project(django_inbox: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @django_inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        Invoice.objects.get_or_create(number=event.id)

    with Bench(django_inbox) as bench:
        bench.deliver("stripe", type="invoice.paid", id="evt_1")
        bench.drain()
    code, output = run(capsys, "events", "--json")
    assert (code, json.loads(output)["event_id"]) == (0, "evt_1")
    code, output = run(capsys, "replay", "evt_1", "--rehearse", "--yes")
    assert code == 0 and "django_shop_invoice" in output, output
    assert run(capsys, "migrate") == (0, "the schema is up to date\n")
    code, output = run(capsys, "events", "--app", "other:inbox")
    assert (code, "leave out APP, --app and --config" in output) == (2, True), output
    assert run(capsys, "nonsense")[0] == 2


MANAGE = """
import os, sys
sys.path.insert(0, ROOT)
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    DATABASES={"default": DATABASE},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "oncehook.integrations.django"],
    SECRET_KEY="only for tests",
    USE_TZ=True,
    LOGGING_CONFIG=None,
    ONCEHOOK={"sources": {"stripe": {"secrets": [SECRET], "unhandled": "ignore"}}, "log_level": "error"},
)
execute_from_command_line(sys.argv)
"""


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_several_processes_serve_the_inbox_of_the_project(database: str, rows: Rows, tmp_path: Path) -> None:
    values = {"ROOT": ROOT, "DATABASE": django_database(database), "SECRET": STRIPE_SECRET}
    manage = tmp_path / "manage.py"
    manage.write_text(
        re.sub(
            "ROOT|DATABASE(?!S)|SECRET(?!_)",
            lambda name: repr(str(values[name[0]]) if name[0] == "ROOT" else values[name[0]]),
            MANAGE,
        )
    )
    command = [sys.executable, str(manage), "oncehook", "serve", "--processes", "2", "--port", "0", "--no-dashboard"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert parent.stdout is not None
    try:
        port = int(re.findall(r"http://127.0.0.1:(\d+) in 2 processes", parent.stdout.readline())[0])
        body = stripe_body("evt_1")

        def is_accepted() -> bool:
            try:
                return httpx.post(
                    f"http://127.0.0.1:{port}/webhooks/stripe", content=body, headers=stripe_headers(body)
                ).is_success
            except httpx.TransportError:
                return False  # the children have not started yet

        wait_until(is_accepted, "a child accepts the delivery", within=60)
        assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]
    finally:
        parent.terminate()
        assert parent.wait(60) == 0
        parent.stdout.close()
