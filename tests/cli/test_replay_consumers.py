"""`--consumer`: the commands that list, replay and retry receipts select those of one consumer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.claim import ConsumerClaim
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim
from tests.support.work import claim_and_settle


@pytest.fixture
def failed(hooks: Path, make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    """Two events that failed for every consumer."""
    copies = (ConsumerClaim("analytics"), ConsumerClaim("ledger"))
    claim_and_settle(make_inbox, make_claim("evt_1", copies=copies), make_claim("evt_2", copies=copies))
    rows("UPDATE webhook_receipts SET status = 'failed'")


def waiting(rows: Rows) -> list[tuple[str, str]]:
    sql = "SELECT event_id, consumer FROM webhook_receipts WHERE status = 'received' ORDER BY event_id, consumer"
    return [tuple(row) for row in rows(sql)]


def test_event_id_replays_the_receipts_of_all_consumers(run: Run, failed: None, rows: Rows) -> None:
    ran = run("replay", "evt_1")
    assert (ran.code, ran.out) == (0, "replayed 3 events (3 failed)\n")
    assert waiting(rows) == [("evt_1", "analytics"), ("evt_1", "ledger"), ("evt_1", "main")]


def test_consumer_narrows_a_named_event_and_a_filter(run: Run, failed: None, rows: Rows) -> None:
    assert run("replay", "evt_1", "--consumer", "ledger").code == 0
    assert waiting(rows) == [("evt_1", "ledger")]
    assert run("replay", "--failed", "--consumer", "ledger").code == 0
    assert waiting(rows) == [("evt_1", "ledger"), ("evt_2", "ledger")]
    assert run("replay", "--consumer", "main", "--yes").code == 0
    assert len(waiting(rows)) == 4
    assert run("replay", "evt_1", "--consumer", "ledger", "--failed").code == 2


def test_events_shows_the_consumer_if_one_is_not_main(run: Run, failed: None) -> None:
    assert [row["consumer"] for row in run("events", "--consumer", "ledger", "--json").lines] == ["ledger"] * 2
    assert "analytics" in run("events").out
    assert "consumer" not in run("events", "--consumer", "main").out


def test_dead_lists_the_dead_letters_of_one_consumer(run: Run, failed: None, rows: Rows) -> None:
    rows("UPDATE webhook_receipts SET status = 'processed' WHERE consumer = 'main'")
    assert [row["consumer"] for row in run("dead", "--consumer", "ledger", "--json").lines] == ["ledger"] * 2
    table = run("dead", "--consumer", "ledger").out
    assert "ledger" in table and "analytics" not in table
    assert run("dead", "--consumer", "main").code == 1


def test_unknown_consumer_gets_the_nearest_name(run: Run, failed: None) -> None:
    for command in (["dead"], ["events"], ["replay"], ["retry"]):
        ran = run(*command, "--consumer", "legder")
        assert ran.code == 2 and "there is no consumer legder: did you mean ledger?" in ran.error, command


def test_retry_selects_the_receipts_of_one_consumer(run: Run, failed: None, rows: Rows) -> None:
    rows("UPDATE webhook_receipts SET status = 'retrying', next_attempt_at = '2100-01-01T00:00:00.000000Z'")
    assert run("retry", "--consumer", "ledger", "--yes").out == "2 retries are due now\n"
    assert run("retry", "evt_1", "--consumer", "main").out == "1 retry is due now\n"
    assert run("retry", "evt_1", "--consumer", "main", "--source", "stripe").code == 2
    future = rows("SELECT count(*) FROM webhook_receipts WHERE next_attempt_at > '2099-01-01'")
    assert future == [(3,)]
