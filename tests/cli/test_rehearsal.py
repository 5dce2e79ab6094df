"""`oncehook replay --rehearse`: the statements of the handlers, which are rolled back."""

from tests.support.command_line import Run
from tests.support.events import Rows


def test_a_rehearsal_prints_the_statements_and_changes_nothing(run: Run, filled: list[int], rows: Rows) -> None:
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


def test_a_rehearsal_of_several_events_needs_yes_without_a_terminal(run: Run, filled: list[int]) -> None:
    ran = run("replay", "--failed", "--rehearse", "--app", "hooks:inbox")
    assert ran.code == 2 and "rehearse 3 events" in ran.error


def test_a_rehearsal_names_the_event_that_has_no_handler_in_the_app(run: Run, filled: list[int], rows: Rows) -> None:
    rows("UPDATE webhook_receipts SET type = 'customer.updated' WHERE event_id = 'evt_4'")
    ran = run("replay", "evt_4", "--rehearse", "--app", "hooks:inbox")
    assert "no handler in this app; the event would wait for a process that has one" in ran.out


def test_a_failed_rehearsal_prints_the_error_and_exits_1(run: Run, filled: list[int]) -> None:
    ran = run("replay", "evt_3", "--rehearse", "--app", "hooks:inbox")
    assert ran.code == 1 and "    failed: LookupError: no such invoice" in ran.out
    assert "rehearsed 1, 1 failed. All statements were rolled back." in ran.out
