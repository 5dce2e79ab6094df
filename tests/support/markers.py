"""Which kind of test an item is. The marker follows from its folder, its fixtures, and what its file imports."""

import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest

FOLDERS = {"browser": "browser", "faults": "faults", "system": "system", "docs": "system"}
ON_ONE_DATABASE = {
    "alerts", "browser", "cli", "concurrency", "docs", "examples", "handlers", "integrations", "observability",
    "receiver", "runtime", "system", "testing", "web",
}  # fmt: skip
"""Folders of code that leaves the database to the store and the operations. `make test` runs a test of theirs on SQLite
or on PostgreSQL, and `make test-rest` on the other one."""
DATABASES = {"database", "oncehook_database"}
"""The fixtures that run a test on both databases."""
SERVERS = {"database", "postgres"}
"""Fixtures that need a database server or a database file."""

_NEEDS_MORE = re.compile(
    r"^(?:import|from) (?:httpx|multiprocessing|psycopg|socket|sqlalchemy|sqlite3|subprocess|uvicorn)\b"
    r"|^(?:import|from) (?:anymail|django|svix|twilio)\b"
    r"|^from tests\.support\.(?:aws|dashboard|http_target|proxy|receiver|recording_senders|serve|servers)\b"
    r"|^from tests\.support\.(?:broker_servers|brokers|intake|standbys|tls_server|work_queue)\b"
    r"|^from tests\.support import programs\b|\bInbox\(|\bpytester\b"
    r"|^pytestmark = .*pytest\.mark\.system",
    re.MULTILINE,
)
"""Imports and calls of files whose tests start a server or a process, open a database, or load large libraries."""


_TEST = re.compile(r"^(?:async )?def test_\w+\(([^)]*)\)", re.MULTILINE)
_ON_A_DATABASE = re.compile(r"\b(?:database|inbox|insert|insert_note|make_inbox|postgres|rows|store)\b:")
"""The fixtures of `tests/conftest.py` that bring a database, as parameters of a test."""

_OPENS = {
    "sqlite3.connect": "opens a database",
    "socket.bind": "starts a server",
    "socket.connect": "connects to a server",
    "subprocess.Popen": "starts a process",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
}
"""Audit events of Python that no unit test may cause."""


def has_unit_tests(path: Path) -> bool:
    """Whether a file or a folder can have unit tests. pytest does not even import the others with `-m unit`."""
    if path.is_dir():
        return path.name != "examples" and not (path.parent.name == "tests" and path.name in FOLDERS)
    return not path.name.startswith("test_") or is_unit_file(path)


def reject_servers() -> None:
    """From now on, let everything fail that opens a database, or that starts a server or a process."""

    def reject(event: str, _: object) -> None:
        if event in _OPENS:
            raise AssertionError(f"a unit test {_OPENS[event]} ({event}): mark it with pytest.mark.system")

    sys.addaudithook(reject)


@cache
def is_unit_file(path: Path) -> bool:
    """Whether some test of this file needs no server, no process and no database."""
    if _folder(path) in {*FOLDERS, "examples"}:
        return False
    source = path.read_text("utf-8")
    return not _NEEDS_MORE.search(source) and not all(map(_ON_A_DATABASE.search, _TEST.findall(source)))


def has_torture_tests(path: Path) -> bool:
    """Whether `make torture` runs some tests of this file."""
    return any(f"mark.{name}" in path.read_text("utf-8") for name in ("torture", "long"))


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


def beyond_sample(items: Iterable[pytest.Item], named: Collection[str]) -> Iterator[pytest.Item]:
    """The cases that `make test` leaves to `make test-rest`: always the same ones, and none that is named.

    A test with the marker `sampled(count)` keeps that number of its cases. In ON_ONE_DATABASE, a case that runs on both
    databases keeps one of them.
    """
    groups: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("torture"):
            continue
        mark, function = item.get_closest_marker("sampled"), item.nodeid.partition("[")[0]
        if mark is not None:
            groups[mark.args[0], function].append(item)
        elif _folder(item.path) in ON_ONE_DATABASE and (case := _parameters(item)).keys() & DATABASES:
            others = {name: value for name, value in case.items() if name not in DATABASES}
            groups[1, function, repr(others)].append(item)
    for (count, *_), group in groups.items():
        spread = sorted(group, key=lambda item: zlib.crc32(item.nodeid.encode()))
        yield from (item for item in spread[cast("int", count) :] if item.nodeid not in named)


def _parameters(item: pytest.Item) -> dict[str, object]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _folder(path: Path) -> str:
    parts = path.parts
    return "examples" if "examples" in parts else parts[len(parts) - 1 - parts[::-1].index("tests") + 1]
