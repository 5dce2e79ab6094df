"""Times as text."""

from datetime import UTC, datetime


def rfc3339(moment: datetime | None) -> str | None:
    """A moment as text: RFC 3339, UTC, microseconds, always the same width."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")  # %Y drops zeros
