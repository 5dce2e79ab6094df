"""What the demo shows: a live table on a terminal, a line every few seconds elsewhere."""

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

from oncehook.cli.events import COLOURS
from oncehook.cli.options import printable
from oncehook.cli.tally import Check, Counts
from oncehook.model.receipt import Receipt
from oncehook.model.states import State

COLUMNS = ("deliveries", "accepted", "duplicate", "ignored", "rejected")
QUIET = "bright_black"
STYLES = {"accepted": "green", "duplicate": "cyan", "ignored": QUIET, "rejected": "yellow"}
WIDEST = 110
LEAST_HEIGHT = 28
"""Lines that the addresses, hints and the table need; a taller terminal shows more of the latest events."""

STATUS = max(map(len, State))
"""Columns of the longest state."""

LINE_EVERY = 2.0
"""Seconds between two lines where there is no terminal."""


@dataclass
class Snapshot:
    """What is shown of one moment. Everything but the time is of the last check, so that the figures agree."""

    sources: Sequence[str]
    seconds: float = 0.0
    rate: float = 0.0
    check: Check = field(default_factory=Check)
    counts: Counts = field(default_factory=Counts)
    from_you: int = 0
    receipts: Counter[str] = field(default_factory=Counter)
    latest: list[Receipt] = field(default_factory=list)


class Board:
    """The live table."""

    every = 0.25

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> "Board":
        self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.live.stop()

    def show(self, now: Snapshot) -> None:
        self.live.update(render(now, events=self._room()), refresh=True)

    def _room(self) -> int:
        return max(2, min(12, self.console.size.height - LEAST_HEIGHT))


class Lines:
    """The same, as plain lines, for a pipe or a log file."""

    every = LINE_EVERY

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def show(self, now: Snapshot) -> None:
        counts = "  ".join(f"{getattr(now.counts, name).total()} {name}" for name in COLUMNS)
        click.echo(f"{now.seconds:5.0f} s  {counts}  {told(now.check)}")
        sys.stdout.flush()


def told(check: Check) -> str:
    """The promise in a sentence, or what is wrong with it."""
    if check.holds:
        return f"{check.acked:,} events acked = {check.receipts:,} receipts, each exactly once"
    wrong = {
        f"{check.acked:,} events acked but {check.receipts:,} receipts": check.acked != check.receipts,
        f"{check.twice} events accepted twice": check.twice,
        f"{check.forged} forged deliveries accepted": check.forged,
        f"{check.refused} genuine deliveries refused": check.refused,
        f"{check.astray} answers that the door should never give": check.astray,
    }
    return "BROKEN: " + ", ".join(text for text, is_so in wrong.items() if is_so)


def render(now: Snapshot, *, events: int) -> RenderableType:
    """The whole picture, with the latest `events` events."""
    picture = Group(
        _sources(now),
        _heading("what the senders did"),
        _behaviours(now),
        _heading("latest events"),
        _latest(now.latest[:events]),
        _promise(now),
    )
    return Constrain(picture, WIDEST)


def _heading(text: str) -> Rule:
    return Rule(Text(text, style=QUIET), align="left", style=QUIET)


def _sources(now: Snapshot) -> Table:
    minutes, seconds = divmod(int(now.seconds), 60)
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        expand=True,
        pad_edge=False,
        show_edge=False,
        show_footer=True,
        border_style=QUIET,
    )
    clock = f"total  {minutes:02d}:{seconds:02d}  {now.rate:,.0f}/s"
    table.add_column("source", clock, no_wrap=True, ratio=len(clock) + 3)
    for name in COLUMNS:
        total = f"{getattr(now.counts, name).total():,}"
        table.add_column(name, total, justify="right", style=STYLES.get(name, ""), ratio=len(name) + 2)
    table.add_column("receipts", f"{now.receipts.total():,}", justify="right", style="bold", ratio=len("receipts") + 2)
    for source in now.sources:
        counts = [getattr(now.counts, name)[source] for name in COLUMNS]
        table.add_row(source, *map(_number, counts), _number(now.receipts[source]))
    return table


def _number(count: int) -> Text:
    return Text(f"{count:,}") if count else Text("·", style=QUIET)


def _behaviours(now: Snapshot) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, pad_edge=False, header_style=QUIET)
    counts = {**now.counts.behaviours, "from you": now.from_you}
    for name in counts:
        table.add_column(name, justify="right" if table.columns else "left", no_wrap=True)
    table.add_row(*map(_number, counts.values()))
    return table


def _latest(receipts: Sequence[Receipt]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, expand=True)
    for width, ratio in ((8, None), (8, None), (None, 3), (None, 4), (STATUS, None), (4, None)):
        table.add_column(no_wrap=True, overflow="ellipsis", width=width, ratio=ratio)
    for receipt in receipts:
        times = f"×{receipt.duplicates + 1}" if receipt.duplicates else ""
        table.add_row(
            Text(f"{receipt.received_at.astimezone():%H:%M:%S}", style=QUIET),
            *(Text(printable(text)) for text in (receipt.source, receipt.type, receipt.event_id)),
            Text(receipt.status, style=COLOURS[receipt.status]),
            Text(times, style="cyan"),
        )
    return table


def _promise(now: Snapshot) -> Text:
    good, refused, later = now.check.holds, now.counts.rejected.total(), now.counts.unavailable.total()
    line = Text()
    line.append(" ✓ " if good else " ✗ ", "bold black on green" if good else "bold white on red")
    line.append(f" {told(now.check)}.", "bold" if good else "bold red")
    if refused and good:
        line.append(f" {refused:,} refused deliveries left nothing behind.")
    if later:
        line.append(f" {later:,} were asked to try again.", "yellow")
    return line
