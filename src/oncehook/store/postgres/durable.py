"""Whether PostgreSQL keeps what it has committed: the settings of the server, and its standbys."""

from typing import Any

LOCAL_ONLY = ("local", "remote_write")
"""Values of `synchronous_commit` with which a commit is answered before a synchronous standby has it on disk."""


def unsafe_setting(row: Any) -> str | None:
    """A setting with which an acked event could be lost, such as "fsync = off". `row` is of the query `durability`."""
    commit = row["synchronous_commit"]
    if row["fsync"] == "off":
        return "fsync = off"
    if commit == "off" or (commit in LOCAL_ONLY and row["standby_names"]):
        return f"synchronous_commit = {commit}"
    return None


def risks(row: Any) -> list[str]:
    """What could cost acked events, and may be meant so: a sentence for each."""
    found = []
    unsafe = unsafe_setting(row)
    if unsafe is not None:
        found.append(f"PostgreSQL runs with {unsafe}: a crash can lose acked events (unsafe_durability allows it)")
    if row["full_page_writes"] == "off":
        found.append(
            "PostgreSQL runs with full_page_writes = off: a power cut can tear pages of its files and lose acked "
            "events, unless the file system writes whole pages (ZFS does)"
        )
    if row["standbys"] and not row["standby_names"]:
        found.append(
            f"PostgreSQL has {row['standbys']} asynchronous standby server(s): a failover to one loses the events that "
            f"were acked last. Name one in synchronous_standby_names to keep them"
        )
    return found
