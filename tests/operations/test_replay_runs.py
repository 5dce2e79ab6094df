"""Replays of many: at a rate, interrupted and continued, waited for, counted, and one row of the audit."""

import asyncio
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
from oncehook.operations.replay import Outcomes, RateLimit, replay, run_outcomes
from oncehook.store.rows import Selection
from tests.cli.test_work import on_store, states, worker
from tests.support.command_line import Run
from tests.support.dashboard import dashboard_of
from tests.support.events import Rows, make_claim
from tests.support.serve import ONCEHOOK, write_config
from tests.support.waiting import wait_until

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
    raise RetryLater(3600)
"""
FAILED = {"status": State.FAILED, "outcome": "failed", "error": "KeyError: 'in_1'"}


@pytest.fixture
def folder(in_folder: Path, database: str, make_inbox: Callable[..., Inbox]) -> Path:
    (in_folder / "hooks.py").write_text(HOOKS)
    write_config(in_folder, database)
    on_store(make_inbox)
    return in_folder


def dead_letters(make_inbox: Callable[..., Inbox], number: int, **changes: str) -> list[int]:
    return on_store(make_inbox, *(make_claim(f"evt_{n:05d}", **changes) for n in range(number)), **FAILED)


def test_rate_is_an_upper_bound(run: Run, folder: Path, make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    dead_letters(make_inbox, 20)
    started = time.monotonic()
    ran = run("replay", "--failed", "--rate", "20/s", "--yes")
    assert (ran.code, ran.out) == (0, "replayed 20 events (20 failed)\n")
    assert time.monotonic() - started >= 0.75  # batches of 5: the last one waits for the 15 before it
    assert set(states(rows).values()) == {("received", 1)}
    assert run("replay", "--failed", "--rate", "20", "--yes").code == 2
    assert "expected a rate such as 50/s" in run("replay", "--failed", "--rate", "0/s", "--yes").error


@pytest.mark.anyio
async def test_pace_does_not_catch_up_after_a_slow_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hand:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    hand, slept = Hand(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        hand.now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = RateLimit(10.0, hand)  # type: ignore[arg-type]
    for took in (0.0, 5.0, 0.0):
        await pace.wait()
        hand.now += took
        pace.count(10)
    await pace.wait()
    assert slept == [0.0, 1.0, 1.0, 1.0]  # the batch that took 5 s is followed by a whole second all the same


def test_interrupted_replay_says_how_to_go_on(
    run: Run, folder: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    dead_letters(make_inbox, 40)
    command = [str(ONCEHOOK), "replay", "--failed", "--rate", "8/s", "--yes"]
    running = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        wait_until(lambda: list(states(rows).values()).count(("received", 1)) >= 4)
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=20)
    finally:
        running.kill()
    assert running.returncode == 130 and "Traceback" not in error
    after = re.search(r"--after (\d+)", error)
    assert after and "of 40 events, which stay replayed" in error
    rest = run("replay", "--status", "failed", "--after", after[1], "--yes")
    assert rest.code == 0
    assert set(states(rows).values()) == {("received", 1)}  # each once: none twice, none left


def test_wait_says_what_was_handled_and_what_failed_again(
    run: Run, folder: Path, make_inbox: Callable[..., Inbox]
) -> None:
    dead_letters(make_inbox, 3)
    on_store(make_inbox, make_claim("evt_void", type="invoice.voided"), **FAILED)
    on_store(make_inbox, make_claim("evt_sent", type="invoice.sent"), **FAILED)
    with worker(folder):
        good = run("replay", "--type", "invoice.paid", "--status", "failed", "--wait", "--yes")
        assert good.code == 0
        assert good.out == "replayed 3 events (3 failed): 3 handled, 0 failed again, 0 still waiting\n"
        bad = run("replay", "evt_void", "--wait", "--json")
        assert bad.code == 1 and bad.lines[0]["failed"] == 1 and bad.lines[0]["handled"] == 0
        waits = run("replay", "evt_sent", "--wait", "--timeout", "1s")
        assert waits.code == 1 and "1 still waiting" in waits.out
    assert run("replay", "evt_sent", "--timeout", "1s").code == 2


def test_dry_run_of_many_is_a_summary(run: Run, folder: Path, make_inbox: Callable[..., Inbox]) -> None:
    claims = [make_claim(f"evt_{n:05d}") for n in range(30)]
    on_store(make_inbox, *claims, **FAILED)
    for name in ("in_7", "in_8"):
        voided = make_claim(f"evt_{name}", type="invoice.voided")
        on_store(make_inbox, voided, **{**FAILED, "error": f"LookupError: {name}"})
    ran = run("replay", "--failed", "--dry-run")
    lines = ran.out.splitlines()
    assert ran.code == 0 and re.match(r" +30  stripe  invoice.paid    failed  KeyError: 'in_1'", lines[1])
    assert re.match(r" +2  stripe  invoice.voided  failed  LookupError: …", lines[2])
    assert len([line for line in lines if "evt_" in line]) == 10
    assert lines[-1] == "would replay 32 events (32 failed); nothing was changed"
    assert len(run("replay", "--failed", "--dry-run", "--json").lines) == 32


@pytest.mark.anyio
async def test_replay_of_many_is_one_row_of_the_audit(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with dashboard_of(inbox) as site, site.program("admin") as program, site.signed_in() as browser:
        receipts = await inbox._runtime.store.claims.insert([make_claim(f"evt_{n:05d}") for n in range(1200)])
        rows("UPDATE webhook_receipts SET status = 'failed'")
        done = await replay(inbox._runtime.store, Selection(), actor="ann")
        assert done.count == 1200 and done.last == receipts[-1].receipt and done.run is not None
        by_ann = [row for row in (await program.get("/api/audit")).json()["rows"] if row["actor"] == "ann"]
        assert [(row["action"], row["detail"]["count"], row["detail"]["state"]) for row in by_ann] == [
            ("replay", 1200, "done")
        ]
        audit = (await browser.get("/audit")).text
        assert audit.count(">ann<") == 1 and f'href="/replays/{done.run}"' in audit
        rows(f"UPDATE webhook_receipts SET status = 'processed' WHERE id <= {receipts[699].receipt}")
        rows(f"UPDATE webhook_receipts SET status = 'failed' WHERE id = {receipts[800].receipt}")
        assert await run_outcomes(inbox._runtime.store, done.run) == Outcomes(handled=700, failed=1, waiting=499)
        state = (await program.get(f"/api/replays/{done.run}")).json()
        assert (state["handled"], state["failed"], state["waiting"], state["replayed"]) == (700, 1, 499, 1200)
        page = (await browser.get(f"/replays/{done.run}")).text
        assert "<strong>700</strong> handled" in page and "data-poll" in page
        assert (
            len(await inbox._runtime.store.operations.replays(receipts[0].receipt)) == 1
        )  # batches are still found by receipt


@pytest.mark.anyio
async def test_page_and_api_replay_at_a_rate(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with dashboard_of(inbox) as site, site.program("admin") as program, site.signed_in() as browser:
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{n:05d}") for n in range(8)])
        rows("UPDATE webhook_receipts SET status = 'failed', failed_at = received_at")

        async def moved() -> int:
            return int(rows("SELECT count(*) FROM webhook_receipts WHERE status = 'received'")[0][0])

        asked = {"status": "failed", "count": 8, "rate": 0.01}  # the second batch would wait for minutes
        run = (await program.post("/api/replays", json=asked)).json()["run"]
        async with asyncio.timeout(20):
            while not await moved():
                await asyncio.sleep(0.02)
        state = (await program.get(f"/api/replays/{run}")).json()
        assert (state["state"], await moved(), state["waiting"]) == ("running", 1, 1)
        assert "per second" in (await browser.get("/replay?status=failed")).text
        bad = await browser.submit("/replay", {"status": "failed", "count": "7", "rate": "fast"})
        assert bad.status_code == 422
        assert (await browser.submit("/replay", {"status": "failed", "count": "7", "rate": "0.01"})).status_code == 303
        async with asyncio.timeout(20):
            while await moved() < 2:
                await asyncio.sleep(0.02)
