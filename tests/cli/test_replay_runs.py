"""`oncehook replay`: its rate, interruption, waiting and dry run."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.states import State
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim
from tests.support.serve import ONCEHOOK, worker_process, write_config
from tests.support.waiting import wait_until
from tests.support.work import claim_and_settle, receipt_states

HOOKS = """
from oncehook import Event, Fail, Inbox, RetryLater

inbox = Inbox()


@inbox.on("stripe", "invoice.paid")
async def paid(event: Event) -> None:
    pass


@inbox.on("stripe", "invoice.voided")
async def voided(event: Event) -> None:
    raise Fail("it stays broken")


@inbox.on("stripe", "invoice.sent")
async def sent(event: Event) -> None:
    raise RetryLater(after=3600)
"""


FAILED = {"status": State.FAILED, "outcome": "failed", "error": "KeyError: 'in_1'"}


@pytest.fixture
def folder(in_folder: Path, database: str, make_inbox: Callable[..., Inbox]) -> Path:
    (in_folder / "hooks.py").write_text(HOOKS)
    write_config(in_folder, database)
    claim_and_settle(make_inbox)
    return in_folder


def dead_letters(make_inbox: Callable[..., Inbox], number: int, **changes: str) -> list[int]:
    return claim_and_settle(make_inbox, *(make_claim(f"evt_{n:05d}", **changes) for n in range(number)), **FAILED)


def test_replay_command_keeps_to_its_rate(run: Run, folder: Path, make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    dead_letters(make_inbox, 20)
    started = time.monotonic()
    ran = run("replay", "--failed", "--rate", "20/s", "--yes")
    assert (ran.code, ran.out) == (0, "replayed 20 events (20 failed)\n")
    assert time.monotonic() - started >= 0.75  # batches of 5: the last one waits for the 15 before it
    assert set(receipt_states(rows).values()) == {("received", 1)}
    assert run("replay", "--failed", "--rate", "20", "--yes").code == 2
    assert "expected a rate such as 50/s" in run("replay", "--failed", "--rate", "0/s", "--yes").error


def test_interrupted_replay_command_says_how_to_continue(
    run: Run, folder: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    dead_letters(make_inbox, 40)
    command = [str(ONCEHOOK), "replay", "--failed", "--rate", "8/s", "--yes"]
    running = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        wait_until(lambda: list(receipt_states(rows).values()).count(("received", 1)) >= 4)
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=20)
    finally:
        running.kill()
    assert running.returncode == 130 and "Traceback" not in error
    after = re.search(r"--after (\d+)", error)
    assert after and "of 40 events, which stay replayed" in error
    rest = run("replay", "--status", "failed", "--after", after[1], "--yes")
    assert rest.code == 0
    assert set(receipt_states(rows).values()) == {("received", 1)}  # each once: none twice, none left


@pytest.mark.sampled(1)
def test_replay_wait_counts_handled_failed_and_waiting_events(
    run: Run, folder: Path, make_inbox: Callable[..., Inbox]
) -> None:
    dead_letters(make_inbox, 3)
    claim_and_settle(make_inbox, make_claim("evt_void", type="invoice.voided"), **FAILED)
    claim_and_settle(make_inbox, make_claim("evt_sent", type="invoice.sent"), **FAILED)
    with worker_process(folder):
        good = run("replay", "--type", "invoice.paid", "--status", "failed", "--wait", "--yes")
        assert good.code == 0
        assert good.out == "replayed 3 events (3 failed): 3 handled, 0 failed again, 0 still waiting\n"
        bad = run("replay", "evt_void", "--wait", "--json")
        assert bad.code == 1 and bad.lines[0]["failed"] == 1 and bad.lines[0]["handled"] == 0
        waits = run("replay", "evt_sent", "--wait", "--timeout", "1s")
        assert waits.code == 1 and "1 still waiting" in waits.out
    assert run("replay", "evt_sent", "--timeout", "1s").code == 2


def test_replay_dry_run_of_many_events_is_a_summary(run: Run, folder: Path, make_inbox: Callable[..., Inbox]) -> None:
    claims = [make_claim(f"evt_{n:05d}") for n in range(30)]
    claim_and_settle(make_inbox, *claims, **FAILED)
    for name in ("in_7", "in_8"):
        voided = make_claim(f"evt_{name}", type="invoice.voided")
        claim_and_settle(make_inbox, voided, **{**FAILED, "error": f"LookupError: {name}"})
    ran = run("replay", "--failed", "--dry-run")
    lines = ran.out.splitlines()
    assert ran.code == 0 and re.match(r" +30  stripe  invoice.paid    failed  KeyError: 'in_1'", lines[1])
    assert re.match(r" +2  stripe  invoice.voided  failed  LookupError: …", lines[2])
    assert len([line for line in lines if "evt_" in line]) == 10
    assert lines[-1] == "would replay 32 events (32 failed); nothing was changed"
    assert len(run("replay", "--failed", "--dry-run", "--json").lines) == 32
