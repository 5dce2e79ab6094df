"""Timestamps as text."""

from datetime import UTC, datetime


def rfc3339(moment: datetime | None) -> str | None:
    """Format a time as RFC 3339 in UTC with microseconds, always with the same length."""
    if moment is None:
        return None
    return (
        moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )  # strftime's %Y drops leading zeros
