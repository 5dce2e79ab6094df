"""Each kind of alert target against a real receiver: what it gets, and errors without secrets."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from oncehook.alerts.message import make_test_message
from tests.support.alerts import OPENED, SECRET, failure_of, make_target
from tests.support.http_target import http_response, receiving, stall_after
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_webhook_gets_signed_json_that_the_standard_webhooks_library_verifies() -> None:
    async with receiving() as receiver:
        assert await make_target(webhook=receiver.url, secret=SECRET).send(OPENED) == "responded 200"
    (request,) = receiver.requests
    assert request.line.startswith("POST /hooks?token=")
    body: dict[str, Any] = Webhook(SECRET).verify(request.body, request.headers)
    assert (body["type"], body["timestamp"]) == ("alert.opened", "2026-11-16T03:00:00.000000Z")
    assert body["data"] == {
        "id": "0af1-opened", "word": "opened", "incident": 7, "rule": "dead_letters", "source": "stripe",
        "summary": OPENED.summary, "remedy": OPENED.remedy, "value": 2.0, "threshold": 0.0,
        "opened_at": OPENED.opened_at, "recovered_at": None, "link": "https://hooks.example.com/dead",
    }  # fmt: skip
    assert request.headers["webhook-id"] == request.headers["idempotency-key"] == "0af1-opened"


async def test_webhook_is_signed_with_both_secrets_of_a_rotation() -> None:
    other = "whsec_bm90IHRoZSBzYW1lIGFzIHRoZSBvdGhlciBvbmU="
    async with receiving() as receiver:
        await make_target(webhook=receiver.url, secret=[SECRET, other]).send(OPENED)
    (request,) = receiver.requests
    for secret in (SECRET, other):
        Webhook(secret).verify(request.body, request.headers)


async def test_slack_gets_a_text_with_escaped_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver:
        monkeypatch.setenv("SLACK_URL", receiver.url)
        assert await make_target(slack="env:SLACK_URL").send(OPENED) == "responded 200"
    (request,) = receiver.requests
    assert request.headers["content-type"] == "application/json" and "webhook-signature" not in request.headers
    assert json.loads(request.body) == {
        "text": "Alert: dead_letters (stripe). stripe has dead letters: 2, more than &lt;0&gt;.\n"
        "Run `oncehook dead`.\nhttps://hooks.example.com/dead"
    }


@pytest.mark.parametrize("kind", ["webhook", "slack"])
async def test_error_of_an_http_target_names_only_its_host(kind: str) -> None:
    more = {"secret": SECRET} if kind == "webhook" else {}
    async with receiving(http_response(404), http_response(302), stall_after()) as receiver:
        target = make_target(timeout="300ms", **{kind: receiver.url}, **more)
        where = f"http://127.0.0.1:{receiver.port}"
        assert await failure_of(target) == f"{where} answered 404"
        assert (await failure_of(target)).startswith(f"{where} answered 302: redirects are not followed")
        assert await failure_of(target) == f"{where} did not answer within 0.3 s"
    assert (await failure_of(target)).startswith(f"{where} cannot be reached")
    assert "hidden-in-the-query" not in target.where


async def test_command_gets_the_alert_on_standard_input_without_a_shell(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] + '\\n' + sys.stdin.read())"
    command = [sys.executable, "-c", script, str(tmp_path / "got"), "$HOME; `id`"]
    assert await make_target(command=command).send(OPENED) == "exited with 0"
    first, _, body = (tmp_path / "got").read_text().partition("\n")
    assert first == "$HOME; `id`"
    assert json.loads(body)["data"]["summary"] == OPENED.summary


HANGS = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1] + ".new", "w") as file:
    print(child.pid, file=file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""
"""A program that starts another one, writes its process id to a file, and hangs."""


async def test_failed_command_hides_its_arguments_and_its_child_processes_are_killed(tmp_path: Path) -> None:
    python = Path(sys.executable).name
    target = make_target(command=[sys.executable, "-c", "import sys; sys.exit(3)", "token-of-the-pager"])
    assert await failure_of(target) == f"{python} exited with 3"
    assert (
        await failure_of(make_target(command=["/no/such/program"]))
    ) == "program cannot be run: No such file or directory"
    hangs = make_target(command=[sys.executable, "-c", HANGS, str(tmp_path / "child")], timeout="1s")
    assert await failure_of(hangs) == f"{python} did not finish within 1 s"
    child = int((tmp_path / "child").read_text())
    await eventually(lambda: not is_running(child))


async def test_command_is_killed_with_its_child_processes_when_the_inbox_stops(tmp_path: Path) -> None:
    """A stop cancels the notifications that are being sent."""
    target = make_target(command=[sys.executable, "-c", HANGS, str(tmp_path / "child")], timeout="60s")
    sending = asyncio.create_task(target.send(OPENED))
    await eventually(lambda: (tmp_path / "child").exists(), "the command runs")
    child = int((tmp_path / "child").read_text())
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await eventually(lambda: not is_running(child), "the child process is killed")


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def test_command_that_does_not_read_its_input_succeeds() -> None:
    assert await make_target(command=["true"]).send(make_test_message("x-test", OPENED.at)) == "exited with 0"
