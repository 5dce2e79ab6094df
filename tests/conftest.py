"""Fixtures for every test: each owns its ports, files and databases, and talks to a real server.

A server starts when the first test asks for it: `pytest -m unit` starts none. With several test processes, the first
that asks starts PostgreSQL and the others use it too; the process that runs the tests stops it at the end.
"""

import gc
import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.cli import main
from oncehook.config.settings import Settings
from oncehook.observability import signals
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support import markers, programs
from tests.support.aws import Moto
from tests.support.command_line import Ran, Run
from tests.support.counts import Repetitions
from tests.support.events import Rows
from tests.support.servers import Postgres, in_memory, run_sql, sqlite_file

os.environ.pop("ONCEHOOK_CONFIG", None)
os.environ.pop("ONCEHOOK_DATABASE", None)
# These servers have no TLS. asyncpg, when it asks for TLS, leaves an error behind if it is cut off before the answer.
os.environ["PGSSLMODE"] = "disable"

FOLDER_NUMBERS = itertools.count()
NO_POOLER = "none"
"""Nothing is between the tests and their server. To find that out, each store would open another connection."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rest", action="store_true", help="run the cases that `make test` leaves out of its matrices")
    parser.addoption("--torture", action="store_true", help="run the long fault runs")
    parser.addoption("--long", action="store_true", help="run them at the length of a night; implies --torture")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.torture = config.option.torture or config.option.long
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts `make test &` with Ctrl-C ignored
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    folder = Path(tempfile.mkdtemp(prefix="oncehook-tests-", dir=None if config.option.torture else in_memory()))
    folder.chmod(0o755)
    config.option.basetemp = config.option.basetemp or folder / "tmp"
    os.environ["ONCEHOOK_TEST_FOLDER"] = str(folder)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # else each process that a test starts would compile again
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")

    def stop() -> None:
        Postgres.stop_shared(folder)
        Moto.stop_shared(folder)
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(stop)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m unit`, do not even import the files that have no unit test."""
    return True if config.option.markexpr == "unit" and not markers.has_unit_tests(collection_path) else None


def pytest_collection() -> None:
    gc.disable()  # imported modules stay: scanning them again and again takes seconds


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # without collecting first: that takes a second in each process, and little would go
    gc.set_threshold(50_000, 20, 50)  # as `oncehook serve`: Python's defaults spend 10 % of the CPU in the collector
    gc.enable()
    if session.config.option.markexpr == "unit":
        markers.reject_servers()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the markers that are added here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the markers `unit`, `database`, `browser` and `faults`. Leave out the runs that are too long."""
    for item in items:
        item.add_marker(markers.kind(item))
        if item.get_closest_marker("long"):
            item.add_marker("torture")
    for item in markers.beyond_sample(items, config.args):
        item.add_marker("rest")
    left_out = [name for name in ("rest", "torture", "long") if not config.getoption(name)]
    is_left_out = {item: any(item.get_closest_marker(name) for name in left_out) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if is_left_out[item]])
    items[:] = [item for item in items if not is_left_out[item]]


@pytest.fixture
def repetitions(pytestconfig: pytest.Config) -> Repetitions:
    """How often a long run repeats: the first number, or the second with --long."""
    return lambda torture, long: long if pytestconfig.option.long else torture


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if summary := programs.missing_summary([str(report.longrepr) for report in skipped]):
        terminalreporter.section("programs are missing", red=True, bold=True)
        terminalreporter.line(summary, red=True, bold=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The cluster of this run, or of several runs. The first test that asks for it starts it."""
    server = Postgres.shared(Path(os.environ.get("ONCEHOOK_TEST_CLUSTER") or os.environ["ONCEHOOK_TEST_FOLDER"]))
    yield server
    server.disconnect()


@pytest.fixture(scope="session")
def moto() -> Moto:
    """The stand-in for AWS of this run. The first test that asks for it starts it."""
    return Moto.shared(Path(os.environ["ONCEHOOK_TEST_FOLDER"]))


@pytest.fixture
def aws(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """The stand-in for AWS, and the environment that leads this process to it."""
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    return moto


@pytest.fixture(scope="session")
def docs_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documentation site, built in strict mode."""
    from docs import site  # only these tests need it

    return site.build(tmp_path_factory.mktemp("site") / "build")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for this test alone. To find a free name, the fixture of pytest would list the folders of all tests."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(FOLDER_NUMBERS)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    """The address of a SQLite database for this test alone, for tests that need no other database."""
    return sqlite_file(tmp_path / "inbox.db")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database for this test alone, without rows, on each kind of database in turn."""
    migrated = request.node.get_closest_marker("without_schema") is None
    if request.param == "sqlite":
        file = tmp_path / "inbox.db"
        yield sqlite_file(file) if migrated else f"sqlite:///{file}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    address = server.database(migrated=migrated)
    yield address
    server.drop_later(address)


@pytest.fixture
def rows(database: str) -> Rows:
    """The rows of a statement on this test's database."""
    return partial(run_sql, database)


@pytest.fixture
def make_inbox(database: str) -> Callable[..., Inbox]:
    """An inbox on this test's database, not started."""

    def make(**settings: object) -> Inbox:
        return Inbox(database, **{"worker": False, "poll": "50ms", "pooler": NO_POOLER, **settings})  # type: ignore[arg-type]

    return make


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    """A store of each kind, opened on an empty database."""
    store = make_store(Settings(database=database, pooler=NO_POOLER))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def insert(database: str) -> str:
    """A statement that inserts an event id and a note into the ledger, with the placeholders of the database."""
    placeholders = "$1, $2" if database.startswith("postgresql") else "?, ?"
    return f"INSERT INTO ledger (event_id, note) VALUES ({placeholders})"


@pytest.fixture
def insert_note(database: str) -> str:
    """A statement that inserts only a note into the ledger, with the placeholder of the database."""
    return f"INSERT INTO ledger (note) VALUES ({'$1' if database.startswith('postgresql') else '?'})"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox with a Stripe and a GitHub source, on each kind of database in turn."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        yield inbox


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """The log lines of this process so far, as JSON."""
    for name in ("_log", "_threshold", "_json_stream"):
        monkeypatch.setattr(signals, name, getattr(signals, name))
    stream = io.StringIO()
    signals.configure("debug", "json", stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Every log line of the test, as its event name and fields."""
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(signals, "emit", lambda line, **fields: lines.append((line, fields)))
    return lines


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_folder: Path) -> Run:
    """Run a command in a temporary folder, whose `oncehook.toml` is the configuration."""
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.setenv("ONCEHOOK_CONFIG", "oncehook.toml")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: str) -> Ran:
        for name, module in list(sys.modules.items()):  # an app of the same name, of this test or another
            if (getattr(module, "__file__", None) or "").startswith(os.environ["ONCEHOOK_TEST_FOLDER"]):
                del sys.modules[name]
        monkeypatch.setattr(sys, "argv", ["oncehook", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, error = capfd.readouterr()
        assert isinstance(ended.value.code, int) and "Traceback" not in error
        return Ran(ended.value.code, out, error)

    return call


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the current one."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
