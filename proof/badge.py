"""The badge of the README: an SVG with the figures of the last run."""

from typing import Any
from xml.sax.saxutils import escape

LABEL = "proof"
GREEN, RED, GREY = "#2e7d32", "#c62828", "#555555"
CHARACTER, MARGIN = 6.2, 9
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">
<title>{title}</title>
<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)">
<rect width="{left}" height="20" fill="{grey}"/>
<rect x="{left}" width="{right}" height="20" fill="{color}"/>
</g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{label_x}" y="14" textLength="{label_length}">{label}</text>
<text x="{text_x}" y="14" textLength="{text_length}">{text}</text>
</g>
</svg>
"""


def message(data: dict[str, Any]) -> str:
    """The figures in a few words: the deliveries under faults, or else the kills at crash points.

    "0 lost" needs no count, because a run that loses an event fails.
    """
    results = data["parts"]
    failed = [name for name, result in results.items() if result.get("ok") is False]
    if failed:
        return f"{len(failed)} of {len(results)} parts failed"
    deliveries = dict(results.get("deliveries", {}).get("facts", []))
    if deliveries:
        return f"{deliveries['deliveries']:,} deliveries, {deliveries['kinds of faults']} kinds of faults, 0 lost"
    crashes = dict(results.get("crash-points", {}).get("facts", []))
    kills = crashes.get("processes killed with SIGKILL at a crash point", 0)
    return f"{kills:,} kills at crash points, 0 lost"


def badge(data: dict[str, Any]) -> str:
    """The badge as SVG."""
    text = message(data)
    label_length, text_length = round(len(LABEL) * CHARACTER), round(len(text) * CHARACTER)
    left, right = label_length + 2 * MARGIN, text_length + 2 * MARGIN
    return SVG.format(
        title=escape(f"{LABEL}: {text}"),
        width=left + right,
        left=left,
        right=right,
        grey=GREY,
        color=RED if "failed" in text else GREEN,
        label=LABEL,
        text=escape(text),
        label_x=left / 2,
        label_length=label_length,
        text_x=left + right / 2,
        text_length=text_length,
    )
