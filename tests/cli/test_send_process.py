"""`oncehook send` as a process, against a running service."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_process
from tests.support.events import Rows
from tests.support.serve import Process, process
from tests.support.servers import free_port


@pytest.fixture
def service(config: Path) -> Iterator[Process]:
    with process(config) as running:
        yield running


def send_process(config: Path, service: Process, *arguments: str) -> "subprocess.CompletedProcess[str]":
    to = f"http://127.0.0.1:{service.port}/webhooks/stripe"
    return run_process("send", "stripe", "invoice.paid", "--config", str(config), "--to", to, *arguments)


@pytest.mark.sampled(1)
def test_send_signs_and_posts_events_that_are_accepted(config: Path, service: Process, rows: Rows) -> None:
    one = send_process(config, service)
    assert one.returncode == 0 and one.stdout.startswith("202  ") and '"accepted"' in one.stdout
    duplicated = send_process(config, service, "--duplicate", "2", "--json")
    responses: list[dict[str, Any]] = [json.loads(line) for line in duplicated.stdout.splitlines()]
    assert [response["status"] for response in responses] == [202, 200, 200]
    many = send_process(config, service, "--count", "60", "--duplicate", "1", "--concurrency", "8")
    assert many.returncode == 0
    assert [line.split()[:3] for line in many.stdout.splitlines()[:2]] == [
        ["60", "200", "duplicate"],
        ["60", "202", "accepted"],
    ]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE type = 'invoice.paid'") == [(62,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_exit_code_is_1_if_a_delivery_is_rejected_or_gets_no_response(
    config: Path, service: Process, rows: Rows
) -> None:
    wrong = send_process(config, service, "--secret", "whsec_wrong")
    assert wrong.returncode == 1 and wrong.stdout.startswith("401  ")
    unused = f"http://127.0.0.1:{free_port()}/webhooks/stripe"
    unanswered = run_process("send", "stripe", "invoice.paid", "--config", str(config), "--to", unused)
    assert unanswered.returncode == 1 and unanswered.stdout.startswith("no response")
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


def test_exit_code_is_2_without_a_secret_or_a_valid_url(tmp_path: Path) -> None:
    for arguments, message in (
        (["stripe", "invoice.paid"], "no secret to sign with"),
        (["unknown", "x"], "unknown is not known"),
        (["stripe", "invoice.paid", "--secret", "x", "--to", "ftp://x"], "is not an http or https URL"),
        (["stripe", "invoice.paid", "--secret", "env:NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    ):
        done = run_process("send", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr, done.stderr
