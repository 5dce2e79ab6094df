"""`oncehook dead`: dead letters, grouped for people and listed for programs."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from oncehook import Inbox
from oncehook.cli import dead
from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from tests.support.command_line import Run
from tests.support.events import EVENT_KEYS, Rows, make_claim
from tests.support.work import claim_and_settle


def test_dead_letters_are_grouped_in_the_table_and_listed_as_json(run: Run, filled: list[int], rows: Rows) -> None:
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


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_table_fits_a_terminal_of_80_columns(run: Run, filled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    head, *rows = click.unstyle(run("dead").out).splitlines()
    assert "first failed" not in head and "last failed" in head
    assert all(len(row) <= 80 for row in rows) and "LookupError: no su" in rows[1]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_table_has_a_maximum_number_of_groups(run: Run, filled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MAX_GROUPS", 1)
    assert run("dead").out.endswith("… and 1 more groups; --json lists every event\n")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_json_reads_page_by_page(run: Run, filled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "PAGE", 1)
    assert [line["receipt"] for line in run("dead", "--json").lines] == filled[2::-1]


def test_dead_letters_of_consumers_have_a_column_with_the_consumer(
    run: Run, config: Path, make_inbox: Callable[..., Inbox]
) -> None:
    failed = ConsumerClaim("ledger", State.FAILED, "E: no account")
    claim_and_settle(make_inbox, make_claim("evt_1", copies=(failed,)))
    head, line = run("dead").out.splitlines()
    assert head.split()[:4] == ["events", "source", "consumer", "handler"] and line.split()[:3] == [
        "1",
        "stripe",
        "ledger",
    ]
    (event,) = run("dead", "--json").lines
    assert event["consumer"] == "ledger"
