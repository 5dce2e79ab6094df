"""The findings of `oncehook doctor` about the spool of this host."""

import shutil
from pathlib import Path

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import as_duration
from oncehook.receiver.spool.directory import SpoolDirectory

WAITING_SECONDS = 60.0
"""Seconds after which an event in the spool shows that no process claims it."""


def spool_findings(settings: Settings) -> list[tuple[str, str]]:
    """Return findings: whether the spool can be written, what it has, and whether its limit fits on the disk."""
    assert settings.spool is not None
    directory = SpoolDirectory(Path(settings.spool))
    try:
        directory.prepare()
    except ConfigurationError as error:
        return [("wrong", str(error))]
    findings = [_waiting(directory)]
    damaged = directory.damaged()
    if damaged:
        findings.append(
            (
                "wrong",
                f"spool: {len(damaged)} segment(s) in {directory.folder} could not be claimed completely, such as "
                f"{damaged[0].name}. The log line `spool_damaged` has the reason; remove the files when you have "
                f"recovered their events",
            )
        )
    free = shutil.disk_usage(directory.folder).free + directory.bytes()
    if free < settings.spool_limit:
        findings.append(
            (
                "note",
                f"spool: its disk has room for {free / 2**20:,.0f} MiB, and spool_limit allows "
                f"{settings.spool_limit / 2**20:,.0f} MiB",
            )
        )
    return findings


def _waiting(directory: SpoolDirectory) -> tuple[str, str]:
    events, oldest = directory.events(), directory.oldest()
    if not events or oldest is None:
        return "ok", f"spool: {directory.folder} can be written and is empty"
    age = max(0.0, SYSTEM.now() - oldest)
    level = "wrong" if age > WAITING_SECONDS else "note"
    return level, (
        f"spool: {events:,} event(s) in {directory.folder} are not in the database yet, the oldest since "
        f"{as_duration(float(round(age)))}. A running process with this setting claims them when the database answers"
    )
