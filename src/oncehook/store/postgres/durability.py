"""Whether PostgreSQL keeps committed data: checks the settings of the server and its standbys."""

from typing import Any

LOCAL_ONLY = ("local", "remote_write")
"""Values of `synchronous_commit` with which a commit returns before a synchronous standby has written it to disk."""


def unsafe_setting(row: Any) -> str | None:
    """Return a setting with which an acked event could be lost, such as "fsync = off", or None.

    `row` is the result of the query `durability`.
    """
    commit = row["synchronous_commit"]
    if row["fsync"] == "off":
        return "fsync = off"
    if commit == "off" or (commit in LOCAL_ONLY and row["standby_names"]):
        return f"synchronous_commit = {commit}"
    return None


def risks(row: Any, hosts: int = 1) -> list[str]:
    """Return a sentence for each risk that an acked event is lost. Some of them may be intended.

    `hosts` is the number of hosts in the database URL. With several, a failover is expected.
    """
    sentences = []
    unsafe = unsafe_setting(row)
    if unsafe is not None:
        sentences.append(f"PostgreSQL runs with {unsafe}: a crash can lose acked events (unsafe_durability allows it)")
    if row["full_page_writes"] == "off":
        sentences.append(
            "PostgreSQL runs with full_page_writes = off: a power cut can tear pages of its files and lose acked "
            "events, unless the file system writes whole pages (ZFS does)"
        )
    if row["standbys"] and not row["standby_names"]:
        sentences.append(
            f"PostgreSQL has {row['standbys']} asynchronous standby server(s): a failover loses the events that were "
            f"acked last. To keep them, name a standby in synchronous_standby_names"
        )
    elif hosts > 1 and not row["standby_names"]:
        sentences.append(
            f"`database` names {hosts} hosts, and PostgreSQL has no synchronous standby now: a failover can lose the "
            f"events that were acked last. To keep them, name a standby in synchronous_standby_names"
        )
    return sentences


def connections_risk(needed: int, allowed: int) -> str | None:
    """Return a sentence if a process may need more connections than the server allows."""
    if needed <= allowed:
        return None
    return (
        f"a process may use {needed} connections, and PostgreSQL allows {allowed}: it rejects further ones, also "
        f"those of other programs. Lower `concurrency` of the inbox or of its consumers, or raise max_connections"
    )
