"""Template filters for times, durations and numbers. Hidden characters in any value are escaped visibly."""

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


def finalize(value: Any) -> Any:
    """Run on every value in a template. It makes hidden and direction-changing characters visible."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return "" if value is None else value


def when(value: datetime | str | None) -> Markup:
    """A `time` element: UTC to the second. The attributes have the full precision."""
    at = parse_time(value) if isinstance(value, str) else value
    if at is None:
        return Markup("–")
    full = rfc3339(at) or ""
    year, rest = full[:5], full[5:19].replace("T", " ")
    return Markup('<time datetime="{0}" title="{0}"><span class="year">{1}</span>{2}</time>').format(full, year, rest)


def ago(value: datetime | str | None) -> Markup:
    """A `time` element such as "3m ago"."""
    at = parse_time(value) if isinstance(value, str) else value
    if at is None:
        return Markup("–")
    seconds = max(0.0, (SYSTEM.datetime() - at).total_seconds())
    full = rfc3339(at) or ""
    return Markup('<time datetime="{0}" title="{0}">{1} ago</time>').format(full, span(seconds, minimum="1s"))


def span(seconds: float | None, minimum: str = "<1s") -> str:
    """A duration in its largest unit: 3d, 45m, 12s."""
    if not seconds or seconds <= 0:
        return "–" if minimum == "<1s" else minimum
    return next((f"{int(seconds / size)}{unit}" for size, unit in STEPS if seconds >= size), minimum)


def code(value: str) -> Markup:
    """Turn `names` in backticks into code elements. Short ones do not wrap."""

    def element(match: re.Match[str]) -> str:
        return f'<code class="{"nowrap" if len(match[1]) < 40 else ""}">{match[1]}</code>'

    return Markup(re.sub("`([^`]+)`", element, str(escape(visible(value)))))  # noqa: S704  # the text is escaped


def verbatim(value: str) -> Markup:
    """The value of a form field: HTML-escaped only, so that the form sends it back unchanged."""
    return escape(value)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def per_second(value: float) -> str:
    """A rate in the unit in which it is at least 1: 50/s, 100/m, 3/h."""
    amount, unit = next((pair for pair in ((value, "s"), (value * 60, "m")) if pair[0] >= 1), (value * 3600, "h"))
    return f"{amount:.6g}/{unit}"


def number(value: int) -> str:
    return f"{value:,}"


def up_to(value: int, most: int) -> str:
    """A count, or `most` with a plus sign if it is at least that."""
    return f"{value:,}" if value < most else f"{most:,}+"


def size(value: int) -> str:
    return f"{value / 2**20:g} MiB" if value >= 2**20 else f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value} B"


def noun(value: int, singular: str) -> str:
    """1 event, 1,204 events."""
    return f"{value:,} {singular}{'s' * (value != 1)}"


FILTERS: dict[str, Callable[..., Any]] = {
    "when": when,
    "ago": ago,
    "span": span,
    "ms": milliseconds,
    "per_second": per_second,
    "number": number,
    "up_to": up_to,
    "size": size,
    "noun": noun,
    "verbatim": verbatim,
    "code": code,
}
