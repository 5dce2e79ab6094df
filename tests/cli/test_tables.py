"""Tables on a terminal and in a pipe: widths, truncation, colors and escapes."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from rich.cells import cell_len

from oncehook import Inbox
from oncehook.cli.tables import Column, is_narrow, print_table
from tests.support.command_line import Run
from tests.support.events import make_claim
from tests.support.work import claim_and_settle


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output a terminal of 40 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")


COLUMNS = (Column("name"), Column("text", truncates=True), Column("number", right=True))


def test_columns_are_padded_to_their_widest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("a", "first", 1), ("longer", "x", 1000)])
    assert capsys.readouterr().out.splitlines() == [
        "name    text   number",
        "a       first       1",
        "longer  x        1000",
    ]


def test_a_pipe_gets_the_whole_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("a", "x" * 500, 1)])
    assert "x" * 500 in capsys.readouterr().out


def test_a_terminal_truncates_only_columns_that_allow_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_terminal(monkeypatch)
    print_table(COLUMNS, [("n" * 20, "x" * 50, 1)])
    _, row = click.unstyle(capsys.readouterr().out).splitlines()
    assert len(row) == 40 and "n" * 20 in row and "…" in row


def test_a_column_keeps_a_minimum_width_on_a_tiny_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_terminal(monkeypatch)
    print_table(COLUMNS, [("n" * 60, "x" * 50, 1)])
    _, row = click.unstyle(capsys.readouterr().out).splitlines()
    assert row.split()[1] == "xxxxx…", "a truncated column must keep six characters"


def test_wide_characters_count_as_two_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_terminal(monkeypatch)
    print_table(COLUMNS, [("n", "发票" * 20, 1)])
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert all(cell_len(line) <= 40 for line in lines)


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("\x1b[2J", "a\nb", 1)])
    assert r"\x1b[2J" in capsys.readouterr().out


def test_colors_follow_the_text_of_the_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_terminal(monkeypatch)
    print_table([Column("status", colors={"failed": "red"})], [("failed",), ("other",)])
    _, failed, other = capsys.readouterr().out.splitlines()
    assert "\x1b[31m" in failed and "\x1b" not in other


def test_only_a_terminal_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    assert is_narrow(41) and not is_narrow(40)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert not is_narrow(41)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_text_lists_cost_at_most_three_times_as_much_as_json(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox]
) -> None:
    claim_and_settle(make_inbox, *(make_claim(f"evt_{n:05d}", object_id=f"in_{n}") for n in range(2000)))

    def cost(*options: str) -> float:
        started = time.process_time()
        assert len(run("events", "--limit", "2000", *options).out.splitlines()) >= 2000
        return time.process_time() - started

    cost()
    assert min(cost() for _ in range(3)) < 3 * min(cost("--json") for _ in range(3))  # with rich it was tenfold


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_list_of_events_fits_a_terminal_of_80_columns(
    run: Run, hooks: Path, make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = make_claim("evt_" + "x" * 60, type="invoice.payment_action_required", object_id="发票" * 20)
    claim_and_settle(make_inbox, long)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    lines = click.unstyle(run("events").out).splitlines()
    assert all(cell_len(line) <= 80 for line in lines) and "…" in lines[1] and "received" in lines[1]
    assert "invoice." in lines[1]
