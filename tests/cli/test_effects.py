"""`oncehook effects`: the list, the replay, and effects in `show`, `stats` and a rehearsal."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Effect, Event, Fail, Inbox
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim
from tests.support.serve import ONCEHOOK, write_config
from tests.support.waiting import eventually, wait_until

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()


@inbox.effect
def send(effect, to) -> None: ...


@inbox.on("stripe", "invoice.paid")
async def paid(event: Event) -> None:
    await event.effect("mail:in_1", send, to="jane")
    await event.effect(f"new:{event.replays}", send, to="joe")
    await event.advance("invoice", "in_1", version=1)


@inbox.on("stripe", "invoice.voided", once_per="object_id")
async def voided(event: Event) -> None: ...
"""


@pytest.fixture
def filled(in_folder: Path, database: str, make_inbox: Callable[..., Inbox], rows: Rows) -> Path:
    """Two events that ask for one key, of which the effect fails, and one that is done."""
    config = write_config(in_folder, database)

    async def fill() -> None:
        inbox = make_inbox(worker=False)
        inbox.source("stripe", secrets=["whsec_test"])

        @inbox.effect
        def send(effect: Effect, to: str) -> None:
            if to == "jane":
                raise Fail("no such mailbox")

        @inbox.on("stripe", "invoice.paid")
        async def paid(event: Event) -> None:
            await event.effect("mail:in_1", send, to="jane")
            await event.advance("invoice", "in_1", version=9 if event.id == "evt_1" else 8)
            if event.id == "evt_1":
                await event.effect("mail:done", send, to="joe")

        async with inbox.lifespan():
            inbox._runtime.start_worker()
            for event_id in ("evt_1", "evt_2"):
                await inbox._runtime.store.claims.insert([make_claim(event_id)])
                inbox._runtime.worker.wake()  # type: ignore[union-attr]
                done = f"SELECT count(*) FROM webhook_receipts WHERE event_id = '{event_id}' AND status = 'processed'"
                await eventually(lambda done=done: rows(done) == [(1,)])  # type: ignore[misc]
            finished = "SELECT count(*) FROM webhook_effects WHERE status IN ('done', 'failed')"
            await eventually(lambda: rows(finished) == [(2,)])

    asyncio.run(fill())
    (in_folder / "hooks.py").write_text(HOOKS)
    return config


def test_effects_are_listed_in_a_table_and_as_json(run: Run, filled: Path) -> None:
    shown = run("effects")
    assert shown.code == 0
    for word in ("mail:in_1", "mail:done", "failed", "done", "no such mailbox", "send"):
        assert word in shown.out
    failed, *others = run("effects", "--status", "failed", "--json").lines
    assert not others
    assert (failed["key"], failed["status"], failed["args"]) == ("mail:in_1", "failed", {"to": "jane"})
    assert (failed["target"], failed["attempts"], failed["source"]) == ("send", 1, "stripe")
    assert len(failed["idempotency_key"]) == 40
    assert [row["key"] for row in run("effects", "--key", "mail:done", "--json").lines] == ["mail:done"]
    assert [row["key"] for row in run("effects", "--limit", "1", "--json").lines] == ["mail:done"]
    nothing = run("effects", "--target", "unknown")
    assert (nothing.code, nothing.error) == (1, "no effect matches\n")


def test_limit_holds_for_a_list_of_several_pages(
    run: Run, filled: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.cli.effects.PAGE", 2)
    rows("""INSERT INTO webhook_effects (scope, key, kind, target, args, source, receipt_id, status)
            SELECT scope, 'copy of ' || key, kind, target, args, source, receipt_id, status FROM webhook_effects""")
    whole = [row["id"] for row in run("effects", "--json").lines]
    assert len(whole) == 4
    for limit in (1, 2, 3):
        assert [row["id"] for row in run("effects", "--json", "--limit", str(limit)).lines] == whole[:limit]


def test_effects_of_tenants_are_listed_with_the_tenant(run: Run, filled: Path, rows: Rows) -> None:
    rows("UPDATE webhook_effects SET scope = 'stripe/acme' WHERE key = 'mail:done'")
    listed = run("effects").out
    assert listed.count("stripe") == 2 and listed.count("stripe/acme") == 1


def test_failed_effects_are_replayed_by_number_or_all_at_once(run: Run, filled: Path, rows: Rows) -> None:
    [failed] = run("effects", "--status", "failed", "--json").lines
    [done] = run("effects", "--status", "done", "--json").lines
    refused = run("effects", "replay", str(done["id"]))
    assert refused.code == 1 and f"skipped: effect {done['id']}, which is done" in refused.error
    assert "skipped: effect 999, which does not exist" in run("effects", "replay", "999").error
    assert run("effects", "replay", str(failed["id"]), str(done["id"]), "--actor", "jane", "--json").lines == [
        {"replayed": 1, "left": 1}
    ]
    assert rows("SELECT status FROM webhook_effects ORDER BY id") == [("waiting",), ("done",)]
    assert rows("SELECT actor, action FROM webhook_audit") == [("jane", "replay effects")]
    rows("UPDATE webhook_effects SET status = 'failed' WHERE status = 'waiting'")
    assert run("effects", "replay", "--failed", "--target", "other").code == 1
    assert run("effects", "replay", "--failed", "--target", "send").code == 0
    assert run("effects", "replay", "--failed").code == 1
    for usage in (["replay"], ["replay", "1", "--failed"], ["replay", "1", "--source", "stripe"], ["replay", "one"]):
        assert run("effects", *usage).code == 2


def test_show_lists_requested_repeated_and_stale_effects(run: Run, filled: Path) -> None:
    [first] = run("show", "evt_1", "--json").lines
    assert sorted(row["key"] for row in first["effects"]) == ["mail:done", "mail:in_1"] and first["noops"] == []
    [second] = run("show", "evt_2", "--json").lines
    assert second["effects"] == []
    assert [(row["reason"], row["key"]) for row in second["noops"]] == [
        ("effect", "mail:in_1"),
        ("stale", "invoice:in_1"),
    ]
    assert "failed   mail:in_1 → send   Fail: no such mailbox" in run("show", "evt_1").out
    shown = run("show", "evt_2").out
    assert "not repeated, already recorded: effect mail:in_1" in shown
    assert "stale, a newer event was handled: invoice:in_1" in shown
    assert [(row["kind"], row["receipt"]) for row in second["entities"]] == [("invoice", first["receipt"])]
    assert f"set by event {first['receipt']}" in shown and "set by this event" in run("show", "evt_1").out


def test_stats_count_effects_repeated_effects_and_stale_events(run: Run, filled: Path, rows: Rows) -> None:
    source, effects = run("stats", "--json").lines
    assert (source["effect_conflicts"], source["stale"]) == (1, 1)
    assert effects["effects"] == {"waiting": 0, "performing": 0, "retrying": 0, "done": 1, "failed": 1}
    assert effects["waiting_for"] == []
    assert "effects: 1 done, 1 failed" in run("stats").out
    rows("UPDATE webhook_effects SET status = 'waiting', created_at = '2026-01-01T00:00:00.000000Z', target = 'typo'")
    [waiting] = run("stats", "--json").lines[1]["waiting_for"]
    assert (waiting["target"], waiting["effects"]) == ("typo", 2) and waiting["lag_seconds"] > 3600
    assert "function typo: 2 due" in run("stats").out


def test_a_rehearsal_says_which_effects_are_new_and_records_none(run: Run, filled: Path, rows: Rows) -> None:
    before = rows("SELECT id, status FROM webhook_effects ORDER BY id"), rows("SELECT id FROM webhook_noops")
    [told] = run("replay", "evt_1", "--rehearse", "--app", "hooks:inbox", "--json").lines
    assert [(one["key"], one["new"], one["status"]) for one in told["effects"]] == [
        ("mail:in_1", False, "failed"),
        ("new:1", True, None),
    ]
    assert (told["stale"], told["repeated"], told["error"]) == (["invoice:in_1"], False, None)
    shown = run("replay", "evt_1", "--rehearse", "--app", "hooks:inbox").out
    assert "effect mail:in_1 → send   already recorded (failed), not repeated" in shown
    assert "effect new:1 → send   new" in shown and "a newer event of invoice:in_1 was handled" in shown
    assert (rows("SELECT id, status FROM webhook_effects ORDER BY id"), rows("SELECT id FROM webhook_noops")) == before


# -- as a process ---------------------------------------------------------------------------------------------------

SERVED = """
from pathlib import Path

from oncehook import Effect, Event, Inbox

inbox = Inbox()


@inbox.effect
def send(effect: Effect, to: str) -> None:
    Path("started").touch()
    Path("go").read_bytes()  # a named pipe: blocks until the test writes to it
    Path("sent").write_text(f"{effect.key} {to}")


@inbox.on("stripe", "invoice.paid")
def paid(event: Event) -> None:
    event.effect("mail:in_1", send, to="jane")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["serve", "worker"])
def test_serve_and_worker_let_a_running_effect_finish_at_sigterm(
    command: str, in_folder: Path, database: str, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    async def fill() -> None:
        inbox = make_inbox(worker=False)
        async with inbox.lifespan():
            await inbox._runtime.store.claims.insert([make_claim("evt_1")])

    asyncio.run(fill())
    (in_folder / "hooks.py").write_text(SERVED)
    os.mkfifo(in_folder / "go")
    config = write_config(in_folder, database)
    options = ["--port", "0"] if command == "serve" else []
    arguments = [str(ONCEHOOK), command, "hooks:inbox", "--config", str(config), *options]
    running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((in_folder / "started").exists, "the effect is called")
        running.send_signal(signal.SIGTERM)
        (in_folder / "go").write_bytes(b"")
        assert running.wait(40) == 0
    finally:
        running.kill()
        running.wait()
    assert (in_folder / "sent").read_text() == "mail:in_1 jane"
    assert rows("SELECT status, attempts FROM webhook_effects") == [("done", 1)]
