"""`oncehook intake status`, and what the doctor says about queues."""

from pathlib import Path

import pytest

from tests.support.aws import Moto
from tests.support.command_line import Run
from tests.support.encryption import ring
from tests.support.serve import write_config


@pytest.fixture
def queue(aws: Moto, sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a queue that the Stripe source of the configuration in this folder uses."""
    address = aws.queue()
    config = write_config(tmp_path, sqlite, f"keys = {ring('2026a')}")
    config.write_text(f'{config.read_text()}intake = "sqs:{address}"\n')
    monkeypatch.chdir(tmp_path)
    return address


def test_status_lists_each_queue(run: Run, aws: Moto, queue: str) -> None:
    aws.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="hello")
    ran = run("intake", "status")
    assert ran.code == 0 and "stripe" in ran.out and queue.rpartition("/")[2] in ran.out
    (row,) = run("intake", "status", "--json").lines
    assert (row["source"], row["waiting"], row["dead"], row["problem"]) == ("stripe", 1, None, None)


def test_status_of_a_queue_that_does_not_exist_is_a_failure(run: Run, aws: Moto, queue: str) -> None:
    aws.call("sqs", "DeleteQueue", QueueUrl=queue)
    ran = run("intake", "status", "--json")
    assert ran.code == 1 and "does not exist" in ran.lines[0]["problem"]
    assert "does not exist" in run("doctor").out


def test_status_without_a_queue_says_so(run: Run, sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path, sqlite)
    monkeypatch.chdir(tmp_path)
    ran = run("intake", "status")
    assert (ran.code, ran.out) == (1, "") and "no source has an intake" in ran.error


def test_doctor_reports_a_queue_without_dead_letters(run: Run, queue: str) -> None:
    out = run("doctor").out
    assert "answers, and 0 messages wait in it" in out and "has no dead-letter queue" in out
