"""The demo's output: a live table on a terminal, otherwise one line every two seconds."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from oncehook.cli.demo_check import DeliveryCounts, GuaranteeCheck
from oncehook.cli.events import COLORS
from oncehook.cli.options import printable
from oncehook.model.receipt import Receipt
from oncehook.model.states import State

COLUMNS = ("deliveries", "accepted", "duplicate", "ignored", "rejected")
QUIET = "bright_black"
STYLES = {"accepted": "green", "duplicate": "cyan", "ignored": QUIET, "rejected": "yellow"}
MAX_WIDTH = 110
FIXED_LINES = 28
"""Lines that the addresses, the hints and the tables take. A taller terminal shows more of the latest events."""

STATUS_WIDTH = max(map(len, State))
LINE_INTERVAL = 2.0
"""Seconds between two lines when standard output is not a terminal."""


@dataclass
class DemoSnapshot:
    """The figures on the screen. All except `seconds` come from the same check, so that they agree."""

    sources: Sequence[str]
    seconds: float = 0.0
    rate: float = 0.0
    check: GuaranteeCheck = field(default_factory=GuaranteeCheck)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    from_you: int = 0
    receipts: Counter[str] = field(default_factory=Counter)
    latest: list[Receipt] = field(default_factory=list)


class LiveScreen:
    """A table on a terminal that is redrawn in place."""

    interval = 0.25

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> "LiveScreen":
        self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.live.stop()

    def show(self, snapshot: DemoSnapshot) -> None:
        self.live.update(render(snapshot, events=self._event_lines()), refresh=True)

    def _event_lines(self) -> int:
        return max(2, min(12, self.console.size.height - FIXED_LINES))


class LineOutput:
    """The same figures as plain lines, for a pipe or a log file."""

    interval = LINE_INTERVAL

    def __enter__(self) -> "LineOutput":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def show(self, snapshot: DemoSnapshot) -> None:
        counts = "  ".join(f"{getattr(snapshot.counts, name).total()} {name}" for name in COLUMNS)
        click.echo(f"{snapshot.seconds:5.0f} s  {counts}  {describe_check(snapshot.check)}")
        sys.stdout.flush()


def describe_check(check: GuaranteeCheck) -> str:
    """One sentence: the guarantee holds, or every violation."""
    if check.holds:
        return f"{check.acked:,} events acked = {check.receipts:,} receipts, each exactly once"
    violations = {
        f"{check.acked:,} events acked but {check.receipts:,} receipts": check.acked != check.receipts,
        f"{check.accepted_twice} events accepted twice": check.accepted_twice,
        f"{check.forged_accepted} forged deliveries accepted": check.forged_accepted,
        f"{check.genuine_rejected} genuine deliveries rejected": check.genuine_rejected,
        f"{check.unexpected} unexpected responses": check.unexpected,
    }
    return "BROKEN: " + ", ".join(text for text, is_violated in violations.items() if is_violated)


def render(snapshot: DemoSnapshot, *, events: int) -> RenderableType:
    """The whole screen, with the latest `events` events."""
    screen = Group(
        _sources(snapshot),
        _heading("sender behavior"),
        _behaviors(snapshot),
        _heading("latest events"),
        _latest(snapshot.latest[:events]),
        _verdict(snapshot),
    )
    return Constrain(screen, MAX_WIDTH)


def _heading(text: str) -> Rule:
    return Rule(Text(text, style=QUIET), align="left", style=QUIET)


def _sources(snapshot: DemoSnapshot) -> Table:
    minutes, seconds = divmod(int(snapshot.seconds), 60)
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        expand=True,
        pad_edge=False,
        show_edge=False,
        show_footer=True,
        border_style=QUIET,
    )
    clock = f"total  {minutes:02d}:{seconds:02d}  {snapshot.rate:,.0f}/s"
    table.add_column("source", clock, no_wrap=True, ratio=len(clock) + 3)
    for name in COLUMNS:
        total = f"{getattr(snapshot.counts, name).total():,}"
        table.add_column(name, total, justify="right", style=STYLES.get(name, ""), ratio=len(name) + 2)
    receipts = f"{snapshot.receipts.total():,}"
    table.add_column("receipts", receipts, justify="right", style="bold", ratio=len("receipts") + 2)
    for source in snapshot.sources:
        counts = [getattr(snapshot.counts, name)[source] for name in COLUMNS]
        table.add_row(source, *map(_number, counts), _number(snapshot.receipts[source]))
    return table


def _number(count: int) -> Text:
    return Text(f"{count:,}") if count else Text("·", style=QUIET)


def _behaviors(snapshot: DemoSnapshot) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, pad_edge=False, header_style=QUIET)
    counts = {**snapshot.counts.behaviors, "from you": snapshot.from_you}
    for name in counts:
        table.add_column(name, justify="right" if table.columns else "left", no_wrap=True)
    table.add_row(*map(_number, counts.values()))
    return table


def _latest(receipts: Sequence[Receipt]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, expand=True)
    for width, ratio in ((8, None), (8, None), (None, 3), (None, 4), (STATUS_WIDTH, None), (4, None)):
        table.add_column(no_wrap=True, overflow="ellipsis", width=width, ratio=ratio)
    for receipt in receipts:
        deliveries = f"×{receipt.duplicates + 1}" if receipt.duplicates else ""
        table.add_row(
            Text(f"{receipt.received_at.astimezone():%H:%M:%S}", style=QUIET),
            *(Text(printable(text)) for text in (receipt.source, receipt.type, receipt.event_id)),
            Text(receipt.status, style=COLORS[receipt.status]),
            Text(deliveries, style="cyan"),
        )
    return table


def _verdict(snapshot: DemoSnapshot) -> Text:
    holds, rejected = snapshot.check.holds, snapshot.counts.rejected.total()
    unavailable = snapshot.counts.unavailable.total()
    line = Text()
    line.append(" ✓ " if holds else " ✗ ", "bold black on green" if holds else "bold white on red")
    line.append(f" {describe_check(snapshot.check)}.", "bold" if holds else "bold red")
    if rejected and holds:
        line.append(f" {rejected:,} rejected deliveries left no receipt.")
    if unavailable:
        line.append(f" {unavailable:,} deliveries will be retried.", "yellow")
    return line
