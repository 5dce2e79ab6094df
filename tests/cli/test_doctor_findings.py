"""`oncehook doctor`: one finding per line, with a level, and its exit code."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.cli import doctor
from oncehook.model.claim import ConsumerClaim
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim
from tests.support.work import claim_and_settle

sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def levels(run: Run, *arguments: str) -> dict[str, str]:
    """The level of each finding, by its message."""
    return {line["message"]: line["level"] for line in run("doctor", "--json", *arguments).lines}


@sqlite
def test_a_sound_inbox_has_no_wrong_finding(run: Run, hooks: Path) -> None:
    findings = levels(run, "--app", "hooks:inbox")
    assert "wrong" not in findings.values() and findings["sources: stripe"] == "ok"
    assert findings["database: sqlite responds, and its schema is up to date"] == "ok"
    assert run("doctor", "--app", "hooks:inbox").code == 0


def test_an_invalid_configuration_is_the_only_finding(run: Run, in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text('databse = "sqlite:///x.db"')
    ran = run("doctor")
    assert ran.code == 1 and ran.out.startswith("wrong  ") and ran.out.count("\n") == 1


@sqlite
def test_clocks_that_differ_are_wrong(run: Run, hooks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_CLOCK_DIFFERENCE", -1.0)
    (message,) = [message for message, level in levels(run).items() if level == "wrong"]
    assert message.startswith("the clocks of the database and of this machine differ by") and "NTP" in message


@sqlite
def test_a_source_that_accepts_unsigned_deliveries_is_a_note(run: Run, hooks: Path) -> None:
    with hooks.open("a") as file:
        file.write('[sources.open]\nprovider = "stripe"\nverify = "none"\n')
    assert levels(run)["source open accepts unsigned deliveries from anyone who knows its address"] == "note"


@sqlite
def test_a_queue_of_nats_that_may_not_sync_is_a_note(run: Run, hooks: Path) -> None:
    with hooks.open("a") as file:
        file.write('[sources.waiting]\nprovider = "stripe"\nsecrets = ["whsec_test"]\nintake = "nats://host/orders"\n')
    (message,) = [message for message, level in levels(run).items() if "sync_interval: always" in message]
    assert (
        message.startswith("source waiting: NATS acknowledges messages before fsync") and levels(run)[message] == "note"
    )


@sqlite
def test_an_app_without_a_handler_for_a_source_is_a_note(run: Run, config: Path, filled: list[int]) -> None:
    (message,) = [message for message in levels(run) if message.startswith("source stripe: this app has no handler")]
    assert message.endswith("no running process has one, so its events wait")


def test_a_consumer_with_waiting_events_and_no_process_is_wrong(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    claim_and_settle(make_inbox, make_claim("evt_1", copies=(ConsumerClaim("ledger"), ConsumerClaim("search"))))
    rows(
        "INSERT INTO webhook_consumers (name, source, patterns, settings, revision, seen_at) "
        "VALUES ('ledger', 'stripe', '[\"*\"]', '{}', 1, '2026-11-15T03:00:00.000000Z')"
    )
    messages = [line["message"] for line in run("doctor", "--json").lines if line["level"] == "wrong"]
    assert messages == [
        "consumer ledger: 1 event waits, and no running process has had its handlers since 2026-11-15T03:00:00. Start "
        "a process with its handlers, or end its receipts with `oncehook consumers remove ledger`",
        "consumer search: 1 event waits, and it is not registered. Start a process with its handlers, or end its "
        "receipts with `oncehook consumers remove search`",
    ]
    assert run("pause", "--consumer", "search").code == 0, "the events of a paused consumer wait on purpose"
    now = rows("UPDATE webhook_consumers SET seen_at = registered_at RETURNING name")
    assert now == [("ledger",)], "a process may just be restarting"
    assert not [line for line in run("doctor", "--json").lines if "consumer" in line["message"]]


def test_events_that_only_other_consumers_handle_are_a_note_and_others_are_wrong(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    claim_and_settle(make_inbox, make_claim("evt_1", type="charge.paid", copies=(ConsumerClaim("ledger"),)))
    rows("UPDATE webhook_receipts SET unhandled_at = received_at RETURNING id")
    rows(
        "INSERT INTO webhook_consumers (name, source, patterns, settings, revision) "
        "VALUES ('ledger', 'stripe', '[\"charge.paid\"]', '{}', 1)"
    )
    found = levels(run)
    note = "source stripe: 1 event has no handler of main, only of other consumers; ignored after 5m"
    assert found[note] == "note"
    (wrong,) = [message for message, level in found.items() if level == "wrong"]
    assert wrong.startswith("consumer ledger: 1 event has had no handler in any running process since ")
    rows(
        "INSERT INTO webhook_consumers (name, source, patterns, settings, revision) "
        "VALUES ('main', 'stripe', '[\"charge.*\"]', '{}', 1)"
    )
    found = levels(run)
    assert note not in found, "a process had a handler of main for it, and may be down"
    assert any(message.startswith("source stripe: 1 event has had no handler") for message in found)


@sqlite
def test_a_rejected_delivery_points_to_the_explanation(run: Run, hooks: Path, rows: Rows) -> None:
    rows(
        "INSERT INTO webhook_rejections (source, rejected_at, reason, detail, method, query, headers, body, size) "
        "VALUES ('stripe', '2026-11-16T12:00:00.000000Z', 'bad_signature', 'x', 'POST', '', '{}', x'7b7d', 2)"
    )
    (message,) = [message for message in levels(run) if "was rejected at" in message]
    assert message.startswith("a delivery to stripe was rejected at 2026-11-16T12:00:00 (bad_signature)")
    assert message.endswith("`oncehook doctor signature` explains why")


@sqlite
def test_signature_without_samples_exits_1(run: Run, hooks: Path) -> None:
    ran = run("doctor", "signature")
    assert (ran.code, ran.error) == (1, "there are no rejection samples\n")


@sqlite
def test_signature_of_an_unknown_source_lists_the_sources(run: Run, hooks: Path) -> None:
    ran = run("doctor", "signature", "strip")
    assert ran.code == 2 and "there is no source strip; the sources are: stripe" in ran.error
