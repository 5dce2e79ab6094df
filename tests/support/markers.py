"""Which kind of test an item is. The marker follows from its folder, its fixtures, and what its file imports."""

import re
from functools import cache
from pathlib import Path

import pytest

FOLDERS = {"browser": "browser", "faults": "faults", "system": "system", "docs": "system"}
SERVERS = {"database", "postgres"}
"""Fixtures that need a database server or a database file."""

_NEEDS_MORE = re.compile(
    r"^(?:import|from) (?:httpx|multiprocessing|psycopg|socket|sqlalchemy|sqlite3|subprocess|uvicorn)\b"
    r"|^(?:import|from) (?:anymail|django|svix|twilio)\b"
    r"|^from tests\.support\.(?:dashboard|http_target|proxy|recording_senders|serve|servers|standbys|tls_server)\b"
    r"|^from tests\.support import programs\b|\bInbox\(|\bpytester\b"
    r"|^pytestmark = .*pytest\.mark\.system",
    re.MULTILINE,
)
"""Imports and calls of files whose tests start a server or a process, open a database, or load large libraries."""


@cache
def is_unit_file(path: Path) -> bool:
    """Whether tests of this file need no server, no process and no database unless a fixture brings one."""
    return _folder(path) not in {*FOLDERS, "examples"} and not _NEEDS_MORE.search(path.read_text("utf-8"))


def kind(item: pytest.Item) -> str:
    """`unit`, `database`, `browser`, `faults`, or `system` for the rest."""
    folder = _folder(item.path)
    if folder in FOLDERS:
        return FOLDERS[folder]
    if SERVERS & set(getattr(item, "fixturenames", ())):
        return "database"
    if item.get_closest_marker("system") is not None:
        return "system"
    return "unit" if is_unit_file(item.path) else "system"


def _folder(path: Path) -> str:
    parts = path.parts
    return "examples" if "examples" in parts else parts[len(parts) - 1 - parts[::-1].index("tests") + 1]
