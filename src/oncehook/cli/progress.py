"""How far a replay is: a bar on standard error while it runs, and what became of it with `--wait`."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from oncehook.operations.replay import BATCH, Outcomes, Progress, Replayed, outcomes
from oncehook.store.store import Store

EVERY = 0.5
"""Seconds between two looks at what became of a replay."""


@contextmanager
def replay_bar(would: Replayed, rate: float | None) -> Iterator[Progress]:
    """A bar where a person sees it and it is worth one."""
    with _bar("replaying", would.matched, would.matched > BATCH or rate is not None) as advance:
        yield lambda done: advance(done.matched, "")


async def wait_until_handled(store: Store, done: Replayed, longest: float | None) -> Outcomes:
    """Wait until every receipt that was replayed is handled or failed again, or `longest` seconds are over."""
    now = Outcomes()
    with _bar("handling", done.count, True) as advance:
        try:
            async with asyncio.timeout(longest):
                while True:
                    now = await outcomes(store, done.run or "")
                    advance(now.handled + now.failed, outcomes_text(now))
                    if not now.waiting:
                        return now
                    await asyncio.sleep(EVERY)
        except TimeoutError:
            return now
        except asyncio.CancelledError:
            click.echo(f"\nstopped waiting: {outcomes_text(now)}. Workers go on with them", err=True)
            raise


def outcomes_text(now: Outcomes) -> str:
    """5,390 handled, 4 failed again, 6 still waiting"""
    return f"{now.handled:,} handled, {now.failed:,} failed again, {now.waiting:,} still waiting"


@contextmanager
def _bar(title: str, total: int, is_wanted: bool) -> Iterator[Callable[[int, str], None]]:
    if not is_wanted or not sys.stderr.isatty():
        yield lambda completed, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, said="")
        yield lambda completed, text: bar.update(task, completed=completed, said=text)
