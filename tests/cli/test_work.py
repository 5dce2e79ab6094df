"""`replay`, `dead`, `stats`, `worker` and the history in `show`: what they print, what they leave, their exit codes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from oncehook import Inbox
from oncehook.cli import progress as replay_progress
from oncehook.cli import replay as replay_command
from oncehook.cli.stats import duration_text
from oncehook.model.lease import Settled
from oncehook.model.rows import DeadLetters
from oncehook.model.states import State
from oncehook.operations.dead_letters import group_by_error
from tests.support.command_line import Run
from tests.support.events import EVENT_KEYS, Rows, make_claim, stripe_body, stripe_headers
from tests.support.serve import ONCEHOOK, Process, process, write_config
from tests.support.servers import ask
from tests.support.waiting import wait_until

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()
INSERT = "INSERT INTO ledger (event_id, note) VALUES ({marks})"


@inbox.on("stripe", "invoice.paid")
async def paid(event: Event, tx) -> None:
    await tx.execute(INSERT, event.id, "paid")


@inbox.on("stripe", "invoice.voided")
async def voided(event: Event, tx) -> None:
    await tx.execute(INSERT, event.id, "voided")
    raise LookupError("no such invoice")
"""


@pytest.fixture
def hooks(in_folder: Path, database: str, make_inbox: Callable[..., Inbox], rows: Rows) -> Path:
    """A configuration, an app with handlers, and their table."""
    marks = "$1, $2" if database.startswith("postgresql") else "?, ?"
    (in_folder / "hooks.py").write_text(HOOKS.replace("{marks}", marks))
    config = write_config(in_folder, database)
    on_store(make_inbox)
    rows("CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")
    return config


def on_store(make_inbox: Callable[..., Inbox], *claims: Any, **settled: Any) -> list[int]:
    """Claim these, and settle each with what is given."""

    async def fill() -> list[int]:
        inbox = make_inbox(worker=False)
        async with inbox.lifespan():
            claimed = await inbox._runtime.store.claims.insert(claims) if claims else []
            if settled:
                leased = await inbox._runtime.store.leases.take(1000, 30, "worker-1")
                await inbox._runtime.store.leases.settle([Settled(one.receipt, one.lease, **settled) for one in leased])
            return [one.receipt for one in claimed]

    return asyncio.run(fill())


@pytest.fixture
def filled(hooks: Path, make_inbox: Callable[..., Inbox]) -> list[int]:
    """Three dead letters, a processed event, and one that waits."""
    facts = {"status": State.FAILED, "outcome": "failed", "handler": "hooks.paid", "version": "v1"}
    first = on_store(make_inbox, make_claim("evt_1"), make_claim("evt_2"), error="KeyError: 'in_1'", **facts)
    voided = make_claim("evt_3", type="invoice.voided")
    third = on_store(make_inbox, voided, error="LookupError: no such invoice", **facts | {"handler": "hooks.voided"})
    done = on_store(make_inbox, make_claim("evt_4"), status=State.PROCESSED, outcome="processed", version="v2")
    return first + third + done + on_store(make_inbox, make_claim("evt_5", source="live"))


def states(rows: Rows) -> dict[str, tuple[str, int]]:
    found = rows("SELECT event_id, status, replays FROM webhook_receipts ORDER BY id")
    return {event_id: (status, replays) for event_id, status, replays in found}


# -- replay ---------------------------------------------------------------------------------------------------------


def test_receipts_are_replayed_by_number_and_by_event_id(run: Run, filled: list[int], rows: Rows) -> None:
    ran = run("replay", str(filled[0]), "evt_4", "evt_4", "--actor", "ann")
    assert (ran.code, ran.error) == (0, "")
    assert ran.out == "replayed 2 events (1 failed, 1 processed)\n"
    now = states(rows)
    assert now["evt_1"] == now["evt_4"] == ("received", 1) and now["evt_2"] == ("failed", 0)
    ((actor, action, detail),) = rows("SELECT actor, action, detail FROM webhook_audit")
    assert (actor, action) == ("ann", "replay")
    assert json.loads(detail)["receipts"] == sorted([filled[0], filled[3]])


def test_what_is_under_way_is_left_alone_and_is_exit_code_1(run: Run, filled: list[int], rows: Rows) -> None:
    ran = run("replay", "evt_5")
    assert (ran.code, ran.out, ran.error) == (1, "", "skipped: 1 (received)\n")
    rows("DELETE FROM webhook_payloads")
    ran = run("replay", "evt_4", "--json")
    assert ran.code == 1
    assert ran.lines == [{"matched": 1, "replayed": 0, "from": {}, "left": {"payload pruned": 1}}]
    assert states(rows)["evt_4"] == ("processed", 0)


def test_a_receipt_that_is_not_there_stops_the_whole_replay(run: Run, filled: list[int], rows: Rows) -> None:
    before = states(rows)
    ran = run("replay", "evt_1", "evt_99")
    assert (ran.code, ran.out) == (1, "") and "there is no event evt_99" in ran.error
    assert states(rows) == before


def test_many_without_a_terminal_need_yes(run: Run, filled: list[int], rows: Rows) -> None:
    before = states(rows)
    ran = run("replay", "--failed")
    assert ran.code == 2 and "3 events (3 failed)" in ran.error and "--yes" in ran.error
    assert states(rows) == before
    ran = run("replay", "--failed", "--yes")
    assert (ran.code, ran.out) == (0, "replayed 3 events (3 failed)\n")
    assert [status for status, _ in states(rows).values()] == ["received"] * 3 + ["processed", "received"]
    assert run("replay", "--failed", "--yes").code == 1


def test_on_a_terminal_many_are_asked_for(
    run: Run, filled: list[int], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(question: str, **options: Any) -> bool:
        asked.append(question)
        if len(asked) == 1:
            raise replay_command.click.exceptions.Abort
        return True

    monkeypatch.setattr(replay_command.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(replay_command.click, "confirm", answer)
    assert run("replay", "--source", "stripe").code == 130
    assert states(rows)["evt_1"] == ("failed", 0)
    assert run("replay", "--source", "stripe").code == 0
    assert asked == ["Replay 4 events (3 failed, 1 processed)?"] * 2
    assert states(rows)["evt_1"] == ("received", 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--failed --type invoice.paid", {"evt_1", "evt_2"}),
        ("--handled-by v2", {"evt_4"}),
        ("--status processed --since 1h", {"evt_4"}),
        ("--source stripe --until 2099-01-01 --type *.voided", {"evt_3"}),
        ("--search evt_2", {"evt_2"}),
        ("--object in_1 --failed", {"evt_1", "evt_2", "evt_3"}),
    ],
)
def test_a_filter_picks_and_a_dry_run_only_lists(
    run: Run, filled: list[int], rows: Rows, options: str, expected: set[str]
) -> None:
    before = rows("SELECT * FROM webhook_receipts ORDER BY id")
    listed = run("replay", *options.split(), "--dry-run", "--json")
    assert listed.code == 0 and {line["event_id"] for line in listed.lines} == expected
    assert all(sorted(line) == sorted(EVENT_KEYS) for line in listed.lines)
    people = run("replay", *options.split(), "--dry-run")
    assert people.code == 0 and all(event_id in people.out for event_id in expected)
    assert "nothing was changed" in people.out
    assert rows("SELECT * FROM webhook_receipts ORDER BY id") == before
    assert rows("SELECT * FROM webhook_audit") == []
    assert run("replay", *options.split(), "--yes").code == 0
    assert {event_id for event_id, (_, replays) in states(rows).items() if replays} == expected


def test_nothing_that_matches_is_exit_code_1(run: Run, filled: list[int]) -> None:
    for options in (["--source", "nobody"], ["--handled-by", "v0"], ["--failed", "--until", "2020-01-01"]):
        ran = run("replay", *options)
        assert (ran.code, ran.out, ran.error) == (1, "", "no event matches\n")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [[], ["1", "--failed"], ["--failed", "--status", "ignored"], ["--status", "processing"], ["1", "--rehearse"]],
    ids=lambda arguments: " ".join(arguments) or "nothing",
)
def test_a_replay_that_makes_no_sense_is_exit_code_2(run: Run, hooks: Path, arguments: list[str]) -> None:
    ran = run("replay", *arguments)
    assert ran.code == 2 and ran.out == ""


def test_a_long_replay_on_a_terminal_shows_progress(
    run: Run, filled: list[int], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_progress, "BATCH", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    ran = run("replay", "--failed", "--yes")
    assert ran.code == 0 and "replaying" in ran.error and "3/3" in ran.error


# -- rehearsal ------------------------------------------------------------------------------------------------------


def test_a_rehearsal_shows_what_would_change_and_leaves_nothing(run: Run, filled: list[int], rows: Rows) -> None:
    tables = ("webhook_receipts", "webhook_attempts", "webhook_audit", "ledger")
    before = [rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]
    ran = run("replay", "evt_1", "--rehearse", "--app", "hooks:inbox")
    assert ran.code == 0, ran.error
    assert "hooks.paid" in ran.out and "INSERT INTO ledger" in ran.out and "   1 row" in ran.out
    assert "'evt_1', 'paid'" in ran.out and "really happen" in ran.out and "rolled back" in ran.out
    failing = run("replay", "--failed", "--rehearse", "--app", "hooks:inbox", "--yes", "--json")
    assert failing.code == 1
    assert [(line["receipt"], line["error"]) for line in failing.lines] == [
        (filled[0], None),
        (filled[1], None),
        (filled[2], "LookupError: no such invoice"),
    ]
    assert [(s["rows"], s["args"]) for s in failing.lines[2]["statements"]] == [(1, ["evt_3", "voided"])]
    assert [rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables] == before


def test_many_rehearsals_are_asked_for_too(run: Run, filled: list[int]) -> None:
    ran = run("replay", "--failed", "--rehearse", "--app", "hooks:inbox")
    assert ran.code == 2 and "rehearse 3 events" in ran.error


# -- dead, stats, show ----------------------------------------------------------------------------------------------


def test_dead_letters_are_grouped_for_people_and_listed_for_programs(run: Run, filled: list[int], rows: Rows) -> None:
    ran = run("dead")
    head, first, second = ran.out.splitlines()
    assert ran.code == 0 and head.split()[:4] == ["events", "source", "handler", "error"]
    assert first.split()[:4] == ["2", "stripe", "hooks.paid", "KeyError:"] and first.split()[-1] == str(filled[1])
    assert second.split()[:3] == ["1", "stripe", "hooks.voided"]
    listed = run("dead", "--json")
    assert listed.code == 0 and [line["receipt"] for line in listed.lines] == filled[2::-1]
    assert all(sorted(line) == sorted(EVENT_KEYS) for line in listed.lines)
    rows("UPDATE webhook_receipts SET status = 'processed'")
    assert run("dead", "--json").code == 1
    none = run("dead")
    assert (none.code, none.out, none.error) == (1, "", "there are no dead letters\n")


def test_errors_that_differ_only_in_an_id_are_one_group() -> None:
    rows = [dead_letter(n, f"KeyError: 'in_{n}' on try {n}", str(n)) for n in (3, 1, 2)]
    (group,) = group_by_error([*rows])
    assert (group["receipts"], group["first_received_at"], group["last_received_at"]) == (3, "1", "3")
    assert (group["first_failed_at"], group["last_failed_at"]) == ("1", "3")
    assert group["last_error"] == "KeyError: 'in_3' on try 3"
    others = [replace(rows[0], last_error=None), replace(rows[0], handler="other")]
    assert len(group_by_error([*rows, *others])) == 3


def dead_letter(receipt: int, error: str, at: str) -> DeadLetters:
    return DeadLetters(
        source="stripe", handler="h", last_error=error, receipts=1, last_receipt=receipt,
        first_received_at=at, last_received_at=at, first_failed_at=at, last_failed_at=at,
    )  # fmt: skip


def test_a_senders_text_cannot_command_the_terminal(run: Run, filled: list[int], rows: Rows, database: str) -> None:
    escape = "char(27)" if database.startswith("sqlite") else "chr(27)"
    rows(f"UPDATE webhook_receipts SET last_error = {escape} || '[2J [red]'")
    for command in (["dead"], ["show", "evt_1"]):
        assert "\x1b[2J" not in run(*command).out
    assert r"\x1b[2J [red]" in run("dead").out


def test_stats_tell_where_everything_stands(run: Run, filled: list[int]) -> None:
    live, stripe = run("stats", "--json").lines
    assert (stripe["source"], stripe["events"], stripe["failed"], stripe["processed"]) == ("stripe", 4, 3, 1)
    assert (live["source"], live["received"], live["retrying"], live["duplicates"]) == ("live", 1, 0, 0)
    assert live["lag_seconds"] > 0 and stripe["lag_seconds"] == 0
    assert live["oldest_unfinished_seconds"] > 0 and stripe["oldest_unfinished_seconds"] == 0
    assert {state.value for state in State} < set(live)
    people = run("stats")
    head, *shown = people.out.splitlines()
    assert people.code == 0 and head.split() == ["source", "events", *State, "duplicates", "lag", "oldest"]
    assert [line.split()[:2] for line in shown] == [["live", "1"], ["stripe", "4"], ["all", "5"]]


def test_stats_of_an_empty_inbox(run: Run, hooks: Path) -> None:
    assert run("stats").out == "no events yet\n"
    ran = run("stats", "--json")
    assert (ran.code, ran.out) == (0, "")


def test_a_lag_is_told_in_its_largest_unit() -> None:
    assert [duration_text(seconds) for seconds in (0, 0.4, 12, 61, 7200, 86400 * 3)] == [
        "–",
        "<1s",
        "12s",
        "1m",
        "2h",
        "3d",
    ]


def test_show_tells_every_attempt_and_replay(run: Run, filled: list[int]) -> None:
    run("replay", "evt_1", "--actor", "ann@desk")
    (shown,) = run("show", "evt_1", "--json").lines
    (attempt,) = shown["attempts_history"]
    assert (attempt["number"], attempt["outcome"], attempt["version"]) == (1, "failed", "v1")
    assert (attempt["error"], attempt["handler"], attempt["worker"]) == ("KeyError: 'in_1'", "hooks.paid", "worker-1")
    assert [replay["actor"] for replay in shown["replays_history"]] == ["ann@desk"]
    people = run("show", "evt_1").out
    assert people.index("attempt 1: failed") < people.index("replayed by ann@desk")
    assert "version v1" in people and "KeyError: 'in_1'" in people


@pytest.mark.parametrize("command", [["replay", "--failed"], ["dead"], ["stats"]], ids=lambda command: command[0])
def test_a_look_at_no_inbox_is_told_and_creates_none(run: Run, tmp_path: Path, command: list[str]) -> None:
    write_config(tmp_path, f"sqlite:///{tmp_path / 'nowhere.db'}")
    ran = run(*command)
    assert ran.code == 2 and "there is no database at" in ran.error
    assert not (tmp_path / "nowhere.db").exists()


# -- worker ---------------------------------------------------------------------------------------------------------


@contextmanager
def worker(folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [str(ONCEHOOK), "worker", "hooks:inbox", "--config", "oncehook.toml", *options]
    running = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
    )
    assert running.stdout is not None
    try:
        assert "Oncehook worker" in running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def test_a_worker_works_off_what_a_store_claimed_and_stops_on_sigterm(
    hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    on_store(make_inbox, *(make_claim(f"evt_{n:02d}") for n in range(30)))
    with worker(hooks.parent, "--concurrency", "4") as running:
        wait_until(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(30,)])
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert rows("SELECT count(*), count(DISTINCT event_id) FROM ledger") == [(30, 30)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE lease_until IS NOT NULL") == [(0,)]
    assert rows("SELECT count(*) FROM webhook_attempts WHERE outcome = 'processed'") == [(30,)]


SLOW = """
import asyncio
from pathlib import Path

@inbox.on("stripe", "slow")
async def slow(event: Event, tx) -> None:
    Path(event.id).touch()
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    await tx.execute(INSERT, event.id, "slow")
"""


def test_on_sigterm_a_worker_finishes_what_runs_and_gives_back_what_waits(
    hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    folder = hooks.parent
    with (folder / "hooks.py").open("a") as file:
        file.write(SLOW)
    on_store(make_inbox, *(make_claim(f"evt_{n}", type="slow") for n in range(4)))
    with worker(folder, "--concurrency", "1") as running:
        wait_until(lambda: any(folder.glob("evt_*")))
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'received'") == [(3,)])
        (folder / "go").touch()
        assert running.wait(20) == 0
    found = rows("SELECT status, attempts, count(*) FROM webhook_receipts GROUP BY status, attempts ORDER BY status")
    assert found == [("processed", 1, 1), ("received", 0, 3)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE lease_until IS NOT NULL") == [(0,)]
    assert rows("SELECT count(*) FROM ledger") == [(1,)]


def test_a_worker_takes_up_what_is_replayed_beside_it(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    (receipt,) = on_store(
        make_inbox, make_claim("evt_1"), status=State.FAILED, outcome="failed", error="E: broken", version="v1"
    )
    with worker(hooks.parent) as running:
        assert run("replay", str(receipt)).code == 0
        wait_until(lambda: states(rows) == {"evt_1": ("processed", 1)})
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
    assert rows("SELECT event_id FROM ledger") == [("evt_1",)]


def test_a_worker_handles_what_a_door_in_another_process_accepts(hooks: Path, rows: Rows) -> None:
    folder = hooks.parent
    (folder / "door.py").write_text("from oncehook import Inbox\ninbox = Inbox(worker=False)\n")
    expected = [(f"evt_{n}",) for n in range(5)]
    with process(hooks, "door:inbox") as door, worker(folder) as running:
        for (event_id,) in expected:
            body = stripe_body(event_id)
            address = f"http://127.0.0.1:{door.port}/webhooks/stripe"
            assert httpx.post(address, content=body, headers=stripe_headers(body), verify=False).status_code == 202
        wait_until(lambda: rows("SELECT event_id FROM ledger ORDER BY event_id") == expected)
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert door.end() == 0
    assert {status for status, _ in states(rows).values()} == {"processed"}
    assert rows("SELECT count(*) FROM webhook_attempts") == [(5,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_worker_without_handlers_does_not_start(run: Run, hooks: Path) -> None:
    for arguments in ([], ["empty:inbox"]):
        Path("empty.py").write_text("from oncehook import Inbox\ninbox = Inbox()\n")
        ran = run("worker", *arguments)
        assert ran.code == 2 and "the worker has no handlers" in ran.error
    assert run("worker", "nowhere:inbox").code == 2


def test_a_door_without_a_worker_leaves_the_work(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'inbox.db'}"
    service = Process(write_config(tmp_path, database), "--no-worker", "--concurrency", "4")
    body = stripe_body("evt_1")
    address = f"http://127.0.0.1:{service.port}/webhooks/stripe"
    assert httpx.post(address, content=body, headers=stripe_headers(body), verify=False).status_code == 202
    assert service.end() == 0
    assert ask(database, "SELECT status, attempts FROM webhook_receipts") == [("received", 0)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_text_lists_cost_no_more_than_a_few_times_json(run: Run, hooks: Path, make_inbox: Callable[..., Inbox]) -> None:
    on_store(make_inbox, *(make_claim(f"evt_{n:05d}", object_id=f"in_{n}") for n in range(2000)))

    def cost(*options: str) -> float:
        started = time.process_time()
        assert len(run("events", "--limit", "2000", *options).out.splitlines()) >= 2000
        return time.process_time() - started

    cost()
    assert min(cost() for _ in range(3)) < 3 * min(cost("--json") for _ in range(3))  # with rich it was tenfold


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_list_on_a_terminal_fits_its_width(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = make_claim("evt_" + "x" * 60, type="invoice.payment_action_required", object_id="发票" * 20)
    on_store(make_inbox, long)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    lines = click.unstyle(run("events").out).splitlines()
    assert all(cell_len(line) <= 80 for line in lines) and "…" in lines[1] and "received" in lines[1]
    assert "invoice." in lines[1]


def test_group_of_dead_letters_names_only_what_they_share() -> None:
    errors = [f"KeyError: 'customer' of in_{n}" for n in (1, 2, 3)]
    (group,) = group_by_error([dead_letter(n, error, "1") for n, error in enumerate(errors)])
    assert (group["error"], group["last_error"], group["receipts"]) == ("KeyError: 'customer' of …", errors[2], 3)
    (single,) = group_by_error([dead_letter(1, errors[0], "1")])
    assert single["error"] == errors[0]
