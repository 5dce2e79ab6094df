"""The demo's screen: it fits the terminal, and a pipe gets plain lines."""

import io

import pytest
from rich.console import Console

from oncehook.cli.demo_check import GuaranteeCheck
from oncehook.cli.demo_screen import DemoSnapshot, LineOutput, LiveScreen, render
from oncehook.cli.demo_traffic import BEHAVIORS, SENDERS
from oncehook.concurrency.clock import SYSTEM
from oncehook.model.receipt import Receipt
from oncehook.model.states import State

SOURCES = sorted(sender.source for sender in SENDERS)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_the_screen_fits_the_terminal(width: int, height: int) -> None:
    snapshot = DemoSnapshot(SOURCES, seconds=3725, rate=1234, check=GuaranteeCheck(acked=1_234_567, receipts=1_234_567))
    for name in ("deliveries", "accepted", "duplicate", "ignored", "rejected"):
        getattr(snapshot.counts, name).update(dict.fromkeys(SOURCES, 123_456))
    snapshot.counts.behaviors.update(dict.fromkeys(BEHAVIORS, 99_999))
    console = Console(width=width, height=height, file=io.StringIO(), record=True)
    console.print(render(snapshot, events=3))
    lines = console.export_text().splitlines()
    assert len(lines) <= 18, "the screen must fit a terminal of 24 lines"
    assert all(len(line) <= width for line in lines)
    assert "1,234,567 events acked = 1,234,567 receipts, each exactly once." in " ".join(lines[-2:])


@pytest.mark.parametrize("width", [80, 120, 160])
def test_statuses_and_the_verdict_are_not_truncated(width: int) -> None:
    latest = [
        Receipt(
            receipt=n, source="sendgrid", provider="sendgrid", event_id=f"evt_{n:030d}", type="invoice.paid",
            object_id=None, occurred_at=None, received_at=SYSTEM.datetime(), status=state, attempts=1,
            next_attempt_at=None, processed_at=None, last_error=None, duplicates=12, correlation_id=None,
            delivery_id=None, replays=0, failed_at=None, unhandled_at=None,
        )
        for n, state in enumerate(State)
    ]  # fmt: skip
    snapshot = DemoSnapshot(SOURCES, check=GuaranteeCheck(acked=123_456, receipts=123_456), latest=latest)
    snapshot.counts.rejected["stripe"], snapshot.counts.unavailable["stripe"] = 12_345, 678
    console = Console(file=io.StringIO(), width=width)
    console.print(render(snapshot, events=len(latest)))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert all(f" {state.value} " in text for state in State)
    assert "123,456 events acked = 123,456 receipts, each exactly once." in text
    assert "12,345 rejected deliveries left no receipt. 678 deliveries will be retried." in text


def test_a_violation_is_shown_as_broken() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(DemoSnapshot(SOURCES, check=GuaranteeCheck(acked=2, receipts=1)), events=2))
    assert "✗  BROKEN: 2 events acked but 1 receipts." in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_pipe_gets_one_line_per_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    with LineOutput() as output:
        output.show(DemoSnapshot(SOURCES, seconds=4.2, check=GuaranteeCheck(acked=3, receipts=3)))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("    4 s  0 deliveries  ") and line.endswith(
        "3 events acked = 3 receipts, each exactly once"
    )


@pytest.mark.parametrize(("height", "events"), [(24, 2), (34, 6), (100, 12)])
def test_a_taller_terminal_shows_more_events(height: int, events: int) -> None:
    console = Console(file=io.StringIO(), width=100, height=height)
    assert LiveScreen(console)._event_lines() == events
