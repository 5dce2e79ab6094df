"""`manage.py oncehook …` is the whole command line, with the project's inbox."""

import json
from typing import Any

import pytest
from django.core.management import call_command

from oncehook.testing import Bench
from tests.support.django_shop.models import Invoice


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
