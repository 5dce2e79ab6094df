"""How templates write times, durations and numbers, and how they write everything else: visibly."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import parse_time
from oncehook.web.charts import HEIGHT, WIDTH
from oncehook.web.show import visible

Render = Callable[[str, dict[str, Any]], str]
CHART_SIZE = (WIDTH, HEIGHT)
STEPS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def shown(value: Any) -> Any:
    """What every value of a template goes through: a sender's text cannot hide, nor turn a line around."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return "" if value is None else value


def when(value: datetime | str | None) -> Markup:
    """A time, as a `time` element: UTC to the second, the whole of it for machines and on hover."""
    at = parse_time(value) if isinstance(value, str) else value
    if at is None:
        return Markup("–")
    whole = rfc3339(at) or ""
    year, told = whole[:5], whole[5:19].replace("T", " ")
    return Markup('<time datetime="{0}" title="{0}"><span class="year">{1}</span>{2}</time>').format(whole, year, told)


def ago(value: datetime | str | None) -> Markup:
    """How long ago, which a script keeps current."""
    at = parse_time(value) if isinstance(value, str) else value
    if at is None:
        return Markup("–")
    seconds = max(0.0, (SYSTEM.datetime() - at).total_seconds())
    whole = rfc3339(at) or ""
    return Markup('<time datetime="{0}" title="{0}">{1} ago</time>').format(whole, span(seconds, least="1s"))


def span(seconds: float | None, least: str = "<1s") -> str:
    """A duration in its largest unit: 3d, 45m, 12s."""
    if not seconds or seconds <= 0:
        return "–" if least == "<1s" else least
    return next((f"{int(seconds / size)}{unit}" for size, unit in STEPS if seconds >= size), least)


def code(value: str) -> Markup:
    """A sentence in which `names` stand between backticks: those as code, and a short one on one line."""

    def marked(found: re.Match[str]) -> str:
        return f'<code class="{"nowrap" if len(found[1]) < 40 else ""}">{found[1]}</code>'

    return Markup(re.sub("`([^`]+)`", marked, str(escape(visible(value)))))  # noqa: S704  # what it holds is escaped


def exactly(value: str) -> Markup:
    """The value of a field, which a form sends back: escaped, and nothing of it written out."""
    return escape(value)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def number(value: int) -> str:
    return f"{value:,}"


def up_to(value: int, most: int) -> str:
    """A count that stops at `most`."""
    return f"{value:,}" if value < most else f"{most:,}+"


def size(value: int) -> str:
    return f"{value / 2**20:g} MiB" if value >= 2**20 else f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value} B"


def noun(value: int, word: str) -> str:
    """1 event, 1,204 events."""
    return f"{value:,} {word}{'s' * (value != 1)}"


FILTERS: dict[str, Callable[..., Any]] = {
    "when": when,
    "ago": ago,
    "span": span,
    "ms": milliseconds,
    "number": number,
    "up_to": up_to,
    "size": size,
    "noun": noun,
    "exactly": exactly,
    "code": code,
}
