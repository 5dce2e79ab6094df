"""`oncehook stats`: counts, ages, warnings and `--watch`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from oncehook import Inbox
from oncehook.cli.stats import duration_text
from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from tests.support.command_line import Run
from tests.support.events import make_claim
from tests.support.serve import ONCEHOOK
from tests.support.work import claim_and_settle


def test_stats_count_the_events_of_each_source_by_status(run: Run, filled: list[int]) -> None:
    live, stripe = run("stats", "--json").lines
    assert (stripe["source"], stripe["events"], stripe["failed"], stripe["processed"]) == ("stripe", 4, 3, 1)
    assert (live["source"], live["received"], live["retrying"], live["duplicates"]) == ("live", 1, 0, 0)
    assert live["lag_seconds"] > 0 and stripe["lag_seconds"] == 0
    assert live["oldest_unfinished_seconds"] > 0 and stripe["oldest_unfinished_seconds"] == 0
    assert {state.value for state in State} < set(live)
    table = run("stats")
    head, *shown = table.out.splitlines()
    assert table.code == 0 and head.split() == ["source", "events", *State, "duplicates", "lag", "oldest"]
    assert [line.split()[:2] for line in shown] == [["live", "1"], ["stripe", "4"], ["all", "5"]]


def test_stats_count_each_event_once_and_have_a_row_per_consumer(
    run: Run, config: Path, make_inbox: Callable[..., Inbox]
) -> None:
    failed = ConsumerClaim("ledger", State.FAILED, "E: no account")
    copies = (ConsumerClaim("analytics"), failed)
    claim_and_settle(make_inbox, make_claim("evt_1", status=State.PROCESSED, copies=copies))
    stripe, main, analytics, ledger = run("stats", "--json").lines
    assert (stripe["source"], stripe["events"], stripe["processed"], stripe["failed"]) == ("stripe", 1, 1, 0)
    assert [row["consumer"] for row in (main, analytics, ledger)] == ["main", "analytics", "ledger"]
    assert (analytics["received"], ledger["failed"], main["processed"]) == (1, 1, 1)
    assert analytics["lag_seconds"] > 0 and ledger["lag_seconds"] == main["lag_seconds"] == 0
    _, _, blank, head, *shown = run("stats").out.splitlines()
    assert blank == "" and head.split() == ["consumer", "events", *State, "lag", "oldest"]
    assert [line.split()[:2] for line in shown] == [["main", "1"], ["analytics", "1"], ["ledger", "1"]]


def test_stats_show_a_paused_consumer(run: Run, config: Path, make_inbox: Callable[..., Inbox]) -> None:
    claim_and_settle(make_inbox, make_claim("evt_1", copies=(ConsumerClaim("analytics"),)))

    async def pause() -> None:
        inbox = make_inbox(worker=False)
        async with inbox.lifespan():
            await inbox._runtime.store.pauses.pause("", "jane", consumer="analytics", reason="maintenance")

    asyncio.run(pause())
    assert "analytics has been paused since" in run("stats").out
    assert [row.get("paused_reason") for row in run("stats", "--json").lines] == [None, None, "maintenance"]


def test_stats_of_an_empty_inbox_say_so(run: Run, hooks: Path) -> None:
    assert run("stats").out == "no events yet\n"
    ran = run("stats", "--json")
    assert (ran.code, ran.out) == (0, "")


def test_a_duration_is_shown_in_its_largest_unit() -> None:
    assert [duration_text(seconds) for seconds in (0, 0.4, 12, 61, 7200, 86400 * 3)] == [
        "–",
        "<1s",
        "12s",
        "1m",
        "2h",
        "3d",
    ]


@pytest.mark.sampled(1)
def test_watched_stats_refresh_until_ctrl_c(config: Path, make_inbox: Callable[..., Inbox]) -> None:
    claim_and_settle(make_inbox, make_claim("evt_1"))
    command = [str(ONCEHOOK), "stats", "--watch", "--every", "50ms"]
    for options in (["--json"], []):
        running = subprocess.Popen(
            [*command, *options],
            cwd=config.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        try:
            assert running.stdout is not None
            lines = [running.stdout.readline() for _ in range(3)]
            running.send_signal(signal.SIGINT)
            _, error = running.communicate(timeout=20)
        finally:
            running.kill()
        assert (running.returncode, error) == (0, "")
        if options:
            refreshes = [json.loads(line) for line in lines]
            assert [row["sources"][0]["received"] for row in refreshes] == [1, 1, 1]
            assert refreshes[0]["at"] < refreshes[2]["at"]
        else:
            assert "Ctrl-C stops it" in lines[0] and "stripe" in lines[2]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_narrow_terminal_shows_only_statuses_that_some_event_has(
    run: Run, filled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    head, *rows = click.unstyle(run("stats").out).splitlines()
    assert head.split() == ["source", "events", "received", "processed", "failed", "dup", "lag", "oldest"]
    assert rows[1].split()[:2] == ["stripe", "4"], "the name of the source must stay visible"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_paused_source_is_named_with_the_command_that_resumes_it(run: Run, filled: list[int]) -> None:
    run("pause", "stripe", "--reason", "maintenance")
    line = next(line for line in run("stats").out.splitlines() if "has been paused since" in line)
    assert line.startswith("stripe ") and "(maintenance)" in line and "`oncehook resume stripe`" in line
