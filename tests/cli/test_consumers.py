"""`oncehook consumers`: the list, and the removal of a consumer with its confirmation and warning."""

from collections.abc import Callable
from pathlib import Path

import pytest

import oncehook.operations.consumers as consumers_module
from oncehook import Inbox
from oncehook.model.claim import ConsumerClaim
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim
from tests.support.work import claim_and_settle


@pytest.fixture
def subscribed(hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer `analytics` with two waiting receipts and a dead letter, and no process."""
    monkeypatch.setattr(consumers_module, "KNOWN_AFTER", 0.0)
    claims = [make_claim(f"evt_{n}", copies=(ConsumerClaim("analytics"),)) for n in range(3)]
    claim_and_settle(make_inbox, *claims)
    rows("UPDATE webhook_receipts SET status = 'failed' WHERE event_id = 'evt_0' AND consumer = 'analytics'")
    rows(
        "INSERT INTO webhook_consumers (name, source, patterns, settings, revision) "
        "VALUES ('analytics', 'stripe', '[\"invoice.*\"]', '{\"rate\": 50.0}', 1)"
    )


def test_list_has_each_consumer_with_its_work(run: Run, subscribed: None) -> None:
    main, analytics = run("consumers", "--json").lines
    assert (main["consumer"], main["waiting"], main["dead_letters"]) == ("main", 3, 0)
    assert analytics["sources"] == {"stripe": ["invoice.*"]} and analytics["processes"] == []
    assert (analytics["waiting"], analytics["dead_letters"], analytics["rate"]) == (2, 1, "50/s")
    assert analytics["paused"] is None and analytics["seen_at"] is not None
    assert run("pause", "--consumer", "analytics", "--reason", "slow").code == 0
    table = run("consumers").out
    assert "analytics" in table and "invoice.*" in table and "50/s" in table and "(slow)" in table


def test_list_has_the_types_of_a_consumer_that_subscribes_to_all(run: Run, subscribed: None, rows: Rows) -> None:
    settings = '{"types": ["charge.*"], "forward": "http://127.0.0.1"}'
    rows(f"UPDATE webhook_consumers SET patterns = '[\"*\"]', settings = '{settings}'")
    assert "charge.*" in run("consumers").out


def test_removal_needs_yes_without_a_terminal_and_ends_the_open_receipts(
    run: Run, subscribed: None, rows: Rows
) -> None:
    ran = run("consumers", "remove", "analytics")
    assert ran.code == 2 and "2 unfinished receipts and 1 dead letter: confirm with --yes" in ran.error
    ran = run("consumers", "remove", "analytics", "--yes", "--actor", "ann")
    assert (ran.code, ran.out, ran.error) == (0, "analytics is removed; 3 receipts became ignored\n", "")
    ended = rows("SELECT DISTINCT status, last_error FROM webhook_receipts WHERE consumer = 'analytics'")
    assert ended == [("ignored", "the consumer analytics was removed")]
    assert rows("SELECT DISTINCT actor, action FROM webhook_audit") == [("ann", "remove_consumer")]
    assert [row["consumer"] for row in run("consumers", "--json").lines] == ["main"]
    ran = run("consumers", "remove", "analytics", "--yes")
    assert ran.code == 2 and "there is no consumer analytics" in ran.error


def test_interrupted_removal_can_be_repeated(run: Run, subscribed: None, rows: Rows) -> None:
    rows("DELETE FROM webhook_consumers")
    assert run("consumers", "remove", "analytics", "--yes", "--json").lines == [
        {"consumer": "analytics", "removed": True, "receipts": 3}
    ]


def test_live_process_with_the_consumer_is_a_warning(run: Run, subscribed: None, rows: Rows) -> None:
    rows("INSERT INTO webhook_workers (name) VALUES ('web-1')")
    rows(
        "INSERT INTO webhook_handlers (worker, consumer, source, pattern, matcher, is_projection) "
        "VALUES ('web-1', 'analytics', 'stripe', '*', '*', false)"
    )
    assert run("consumers", "--json").lines[1]["processes"] == ["web-1"]
    ran = run("consumers", "remove", "analytics", "--yes")
    assert ran.code == 0
    assert "1 process had handlers of analytics within the last minute: web-1." in ran.error


@pytest.mark.parametrize(
    ("name", "message"),
    [("main", "the consumer main cannot be removed"), ("analitics", "did you mean analytics?")],
)
def test_wrong_name_is_rejected(run: Run, subscribed: None, name: str, message: str) -> None:
    ran = run("consumers", "remove", name, "--yes")
    assert ran.code == 2 and message in ran.error
