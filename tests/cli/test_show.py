"""`oncehook show`: one event with its history, as JSON, as text and raw."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from tests.cli.conftest import Accept
from tests.support.command_line import Run
from tests.support.events import EVENT_KEYS, Rows, make_claim, stripe_body
from tests.support.work import claim_and_settle


def test_show_finds_an_event_by_receipt_number_and_by_event_id(run: Run, accepted: None, rows: Rows) -> None:
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_2'")
    by_number, by_id = run("show", str(receipt)), run("show", "evt_2")
    assert by_number.code == 0 and by_number.out == by_id.out
    for part in ("evt_2", "invoice.paid", "in_2", "received", "content-type", '"created": 1763200000'):
        assert part in by_number.out


def test_show_as_json_has_the_event_its_payload_headers_and_deliveries(run: Run, accepted: None, rows: Rows) -> None:
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_1' AND source = 'stripe'")
    (shown,) = run("show", str(receipt), "--json").lines
    assert set(shown) == {
        *EVENT_KEYS,
        "consumers",
        "payload",
        "headers",
        "unreadable",
        "deliveries",
        "attempts_history",
        "replays_history",
        "effects",
        "noops",
        "entities",
    }
    assert shown["payload"] == json.loads(stripe_body("evt_1", data={"object": {"id": "in_1"}}))
    assert shown["headers"] == {"content-type": "application/json"}
    assert [(d["same_body"], set(d)) for d in shown["deliveries"]] == [
        (False, {"received_at", "delivery_id", "same_body"})
    ]
    assert "with a different body" in run("show", str(receipt)).out


def test_raw_output_is_the_body_byte_for_byte(run: Run, accept: Accept) -> None:
    body = b'{"id":"evt_1",  "type":"a",\r\n"text":"\xc3\xa9\\u0000\\ud800"}\n\n'
    accept(body)
    ran = run("show", "evt_1", "--raw")
    assert (ran.code, ran.out.encode()) == (0, body)
    assert run("show", "evt_1").code == 0
    assert run("show", "evt_1", "--json").code == 0


def test_show_finds_an_event_whose_id_many_later_events_mention(run: Run, accept: Accept) -> None:
    later = [stripe_body(f"evt_{n}", previous="evt_1") for n in range(2, 30)]
    accept(stripe_body("evt_1"), *later)
    ran = run("show", "evt_1", "--json")
    assert ran.code == 0 and ran.lines[0]["event_id"] == "evt_1"


def test_show_fails_if_the_event_is_unknown_or_ambiguous(run: Run, accepted: None, rows: Rows) -> None:
    for name in ("evt_99", "99999", "9" * 30, "-1"):
        ran = run("show", "--", name)
        assert ran.code == 1 and name in ran.error and ran.out == ""
    ran = run("show", "evt_1")
    assert ran.code == 2 and "several sources" in ran.error and "live" in ran.error
    rows("DELETE FROM webhook_payloads")
    assert "pruned" in run("show", "evt_2").out
    assert run("show", "evt_2", "--raw").code == 1


def test_show_lists_every_attempt_and_replay(run: Run, filled: list[int]) -> None:
    run("replay", "evt_1", "--actor", "ann@desk")
    (shown,) = run("show", "evt_1", "--json").lines
    (attempt,) = shown["attempts_history"]
    assert (attempt["number"], attempt["outcome"], attempt["version"]) == (1, "failed", "v1")
    assert (attempt["error"], attempt["handler"], attempt["worker"]) == ("KeyError: 'in_1'", "hooks.paid", "worker-1")
    assert [replay["actor"] for replay in shown["replays_history"]] == ["ann@desk"]
    people = run("show", "evt_1").out
    assert people.index("attempt 1: failed") < people.index("replayed by ann@desk")
    assert "version v1" in people and "KeyError: 'in_1'" in people


def test_show_prints_the_traceback_and_recognizes_an_object_id(
    run: Run, config: Path, make_inbox: Callable[..., Inbox]
) -> None:
    claim_and_settle(
        make_inbox,
        make_claim("evt_1", object_id="in_668621"),
        status=State.FAILED,
        outcome="failed",
        error="KeyError: 'customer'",
        traceback="hooks.py:40 in paid\nshop.py:7 in find",
    )
    shown = run("show", "evt_1").out
    assert "Traceback of attempt 1:\n  hooks.py:40 in paid\n  shop.py:7 in find\n  KeyError: 'customer'\n" in shown
    ran = run("show", "in_668621")
    assert ran.code == 1 and "`oncehook events --object in_668621`" in ran.error
    assert "--object" not in run("show", "in_0").error


def test_show_and_dead_escape_control_characters_of_the_sender(
    run: Run, filled: list[int], rows: Rows, database: str
) -> None:
    escape = "char(27)" if database.startswith("sqlite") else "chr(27)"
    rows(f"UPDATE webhook_receipts SET last_error = {escape} || '[2J [red]'")
    for command in (["dead"], ["show", "evt_1"]):
        assert "\x1b[2J" not in run(*command).out
    assert r"\x1b[2J [red]" in run("dead").out


@pytest.fixture
def three_consumers(config: Path, make_inbox: Callable[..., Inbox]) -> int:
    """An event that `main` processed, that `ledger` failed at and that waits for `analytics`."""
    copies = (ConsumerClaim("analytics"), ConsumerClaim("ledger", State.FAILED, "E: no account"))
    (receipt,) = claim_and_settle(
        make_inbox,
        make_claim("evt_1", copies=copies),
        status=State.PROCESSED,
        outcome="processed",
        handler="hooks.paid",
    )
    return receipt


def test_show_compares_the_consumers_of_an_event(run: Run, three_consumers: int) -> None:
    shown = run("show", "evt_1").out
    head, *lines = [line.split() for line in shown[: shown.index("\nHistory of")].splitlines()[-4:]]
    assert head == ["consumer", "status", "attempts", "next", "attempt", "handler", "last", "error", "receipt"]
    assert lines[0] == ["main", "processed", "1", "hooks.paid", str(three_consumers)]
    assert lines[1][:3] == ["analytics", "received", "0"]
    assert lines[2][:3] == ["ledger", "failed", "0"] and "no account" in " ".join(lines[2])
    assert "History of main" in shown and "attempt 1: processed" in shown
    (as_json,) = run("show", "evt_1", "--json").lines
    assert [(row["consumer"], row["status"]) for row in as_json["consumers"]] == [
        ("main", "processed"), ("analytics", "received"), ("ledger", "failed"),
    ]  # fmt: skip


def test_show_has_the_history_of_the_chosen_consumer(run: Run, three_consumers: int) -> None:
    (as_json,) = run("show", "evt_1", "--json", "--consumer", "ledger").lines
    assert (as_json["consumer"], as_json["status"], as_json["last_error"]) == ("ledger", "failed", "E: no account")
    assert as_json["payload"] == {"id": "evt_1"} and len(as_json["consumers"]) == 3
    shown = run("show", str(as_json["receipt"])).out
    assert "History of ledger: no attempts yet" in shown and "attempt 1" not in shown


def test_show_names_the_consumers_of_the_event_if_one_is_unknown(run: Run, three_consumers: int) -> None:
    typo = run("show", "evt_1", "--consumer", "analytic")
    assert typo.code == 2 and "did you mean analytics?" in typo.error
    assert "the consumers of the event are analytics, ledger, main" in run("show", "evt_1", "--consumer", "zzz").error


def test_show_of_an_event_with_one_consumer_has_no_table_of_consumers(run: Run, accepted: None) -> None:
    shown = run("show", "evt_2").out
    assert "consumer" not in shown and "History of" not in shown
