"""The geometry of bar charts, which the templates draw as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

WIDTH, HEIGHT = 600, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bar of one time bucket."""

    x: float
    y: float
    width: float
    height: float
    number: int
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One series over time."""

    bars: tuple[Bar, ...]
    total: int
    peak: int
    first: str
    last: str


def chart(buckets: Sequence[int], numbers: Sequence[int], seconds: int) -> Chart:
    """Make one bar per bucket. Its height is relative to the highest bar."""
    peak = max([0, *numbers])
    step = WIDTH / max(1, len(buckets))
    bars = []
    for i, (bucket, number) in enumerate(zip(buckets, numbers, strict=True)):
        height = 0.0 if not number else max(2.0, number / peak * (HEIGHT - 4))
        label = f"{number:,} at {_clock(bucket, seconds)}"
        bars.append(
            Bar(
                x=round(i * step + step * 0.1, 2),
                y=round(HEIGHT - height, 2),
                width=round(step * 0.8, 2),
                height=round(height, 2),
                number=number,
                label=label,
            )
        )
    first, last = (_clock(b, seconds) for b in (buckets[0], buckets[-1])) if buckets else ("", "")
    return Chart(tuple(bars), sum(numbers), peak, first, last)


def _clock(bucket: int, seconds: int) -> str:
    at = datetime.fromtimestamp(bucket, UTC)
    if seconds >= 86400:
        return f"{at:%d %b}"
    return f"{at:%H:%M}" if seconds <= 1800 else f"{at:%d %b %H:%M}"
