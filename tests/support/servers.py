"""Private real servers for tests and benchmarks, on free ports and in temporary folders.

`tests/support/programs.py` finds or installs the programs.
They never touch a server that already runs on this machine.
"""

import contextlib
import fcntl
import os
import pwd
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from tests.support import programs
from tests.support.waiting import wait_until_stopped

MEMORY = 12 * 2**30
"""Bytes that must be free for files in memory."""


def in_memory() -> Path | None:
    """A folder in memory, if there is enough: commits there do not wait for a disk.

    A whole run creates about 1,500 databases of 7 MB. They stay until its end, because dropping one costs a checkpoint.

    A killed process loses nothing there. Power cuts are tested with a separate program.
    """
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < MEMORY:
        return None
    kilobytes = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    return folder if kilobytes is not None and int(kilobytes[1]) * 1024 > MEMORY else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Postgres:
    """A private PostgreSQL cluster. `database()` makes a new database in it and gives its address."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.binaries = programs.find("postgres")
        self.folder = folder
        self.port = free_port()
        self.settings = {"max_connections": "200", "shared_buffers": "128MB", **settings}
        self.user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._dropping = ThreadPoolExecutor(1)
        self._idle: list[psycopg.Connection] = []
        self._migrated = ""
        self._as: dict[str, Any] = {"user": self._owner(), "group": self._owner()} if os.geteuid() == 0 else {}
        self.environment: dict[str, str] = {}
        """Variables for the server besides those of this process."""

    @classmethod
    def shared(cls, folder: Path) -> "Postgres":
        """The cluster in this folder, which all processes of a test run use. The first that asks starts it."""
        server = cls(folder / "cluster")
        with (folder / "postgres.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            port = folder / "postgres.port"
            if port.exists():
                server.port = int(port.read_text())
            else:
                server._start_detached()
                port.write_text(str(server.port))
        return server

    @classmethod
    def stop_shared(cls, folder: Path) -> None:
        """Stop the cluster in this folder, if a test started it."""
        if (folder / "postgres.port").exists():
            server = cls(folder / "cluster")
            server._control("stop", "--mode=fast")

    def _start_detached(self) -> None:
        """Start the server so that it outlives this process."""
        self._create()
        options = " ".join(f"-c{name}={value}" for name, value in self.settings.items())
        self._control("start", "-l", str(self.folder / "log"), "-o", f"-p {self.port} -k '' -h 127.0.0.1 {options}")

    def _control(self, *arguments: str) -> None:
        data = str(self.folder / "data")
        command = [str(self.binaries / "pg_ctl"), "-D", data, "--wait", "--silent", *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", **self._as)
        if done.returncode:
            sys.exit(f"pg_ctl {arguments[0]} failed: {(self.folder / 'log').read_text()[-2000:]}")

    @staticmethod
    def _owner() -> str:
        """The account that the server runs under when the tests run as root, which PostgreSQL rejects."""
        names = {entry.pw_name for entry in pwd.getpwall()}
        return "postgres" if "postgres" in names else "nobody"

    def _create(self) -> None:
        data = self.folder / "data"
        if data.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self.folder, self._owner())
        options = ["-U", self.user, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [self.binaries / "initdb", "-D", data, *options], capture_output=True, cwd="/", **self._as
        )
        if done.returncode:
            sys.exit(f"initdb failed: {done.stderr.decode()}")

    def start(self) -> "Postgres":
        self._create()
        data = self.folder / "data"
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        with (self.folder / "log").open("ab") as log:
            command: list[str | Path] = [self.binaries / "postgres", "-D", data, "-p", str(self.port), "-k", ""]
            self.process = subprocess.Popen(
                [*command, "-h", "127.0.0.1", *options],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                start_new_session=True,
                env={**os.environ, **self.environment},
                **self._as,
            )
        self._wait()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        ready: list[str | Path] = [self.binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready).returncode:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, *, kill: bool = False) -> None:
        """Stop it. With `kill`, no process of it can shut down cleanly."""
        if self.process is None:
            return
        if kill:
            self.process.send_signal(signal.SIGSTOP)  # a child that it starts now would survive, with the shared memory
            wait_until_stopped(self.process.pid)
            victims = [self.process.pid, *children_of(self.process.pid)]  # each is in another process group
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            while any(map(_is_alive, victims)):
                time.sleep(0.01)
        else:
            self.process.send_signal(signal.SIGINT)  # "fast": disconnects everyone
            self.process.wait()
        self.process = None

    def url(self, database: str) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{database}"

    def database(self, *, migrated: bool = False) -> str:
        """The address of a new database: empty, or with the schema, which is created once and copied."""
        self._made += 1
        name = f"test_{os.getpid()}_{self._made}"
        copied = f" TEMPLATE {self._template()}" if migrated else ""
        with self._administrator() as connection:  # quicker than starting psql
            if migrated and connection.info.server_version >= 150000:
                copied += " STRATEGY FILE_COPY"  # with the caches that the first connection would build
            connection.execute(f"CREATE DATABASE {name}{copied}")
        return self.url(name)

    @contextlib.contextmanager
    def _administrator(self) -> Iterator[psycopg.Connection]:
        """A session of the cluster's owner. In the cluster of all tests, it is kept: a new one costs a process."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = psycopg.connect(self.url("postgres"), autocommit=True)
        is_kept = False
        try:
            yield connection
            is_kept = self.process is None
        finally:
            if is_kept:
                self._idle.append(connection)
            else:
                connection.close()

    def disconnect(self) -> None:
        """Drop the databases that wait for it, and close the sessions that are kept."""
        self._dropping.shutdown()
        while self._idle:
            self._idle.pop().close()

    def drop_later(self, address: str) -> None:
        """Drop a database in the background. They are in memory, and those of all tests together do not fit there."""
        self._dropping.submit(self._drop, address.rpartition("/")[2])

    def _drop(self, name: str) -> None:
        with contextlib.suppress(psycopg.Error), self._administrator() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _template(self) -> str:
        """A database with the schema. Its partitions are those of a day, so each day has its own."""
        name = f"migrated_{os.getpid()}_{time.strftime('%Y%m%d', time.gmtime())}"
        if name != self._migrated:
            self.sql(f"CREATE DATABASE {name}")
            migrate(self.url(name))
            self._migrated = name
        return name

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement with psql, independent of the code under test."""
        done = subprocess.run(
            [self.binaries / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", self.url(database), "-c", statement],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def sqlite_file(path: Path) -> str:
    """The address of a new SQLite database with the schema, which is created once and copied."""
    path.write_bytes(_migrated_sqlite())
    path.chmod(0o600)  # as a service makes it
    return f"sqlite:///{path}"


@cache
def _migrated_sqlite() -> bytes:
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        file = Path(folder) / "migrated.db"
        migrate(f"sqlite:///{file}")
        return file.read_bytes()


def migrate(address: str) -> None:
    """Create the schema with the command line."""
    mine = {key: value for key, value in os.environ.items() if key != "ONCEHOOK_CONFIG"}  # a test may have set it
    command = [sys.executable, "-m", "oncehook", "migrate"]
    environment = {**mine, "ONCEHOOK_DATABASE": address}
    subprocess.run(command, check=True, env=environment, cwd="/", stdout=subprocess.DEVNULL)


def children_of(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = (map(int, line.split()) for line in listed.splitlines())
    return [pid for pid, ppid in pairs if ppid == parent]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class PgBouncer:
    """A private PgBouncer in transaction mode in front of a cluster. All its clients share a few connections."""

    CONNECTIONS = 5

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self.postgres = postgres
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "PgBouncer":
        binary = programs.find("pgbouncer")
        owner = self.postgres._as  # as PostgreSQL, it does not run as root
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={self.postgres.port} user={self.postgres.user}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {self.CONNECTIONS}\nmax_client_conn = 1000\n"
        )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(binary), str(config)], stdout=log, stderr=log, cwd="/", start_new_session=True, **owner
            )
        deadline = time.monotonic() + 30
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"PgBouncer did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def url(self, direct: str) -> str:
        """The address of a database, through the pooler."""
        return direct.replace(f":{self.postgres.port}/", f":{self.port}/")


@contextlib.contextmanager
def private_pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """A pooler that exists for the length of a block."""
    folder = Path(tempfile.mkdtemp(prefix="oncehook-pgbouncer-"))
    folder.chmod(0o755)
    server = PgBouncer(postgres, folder)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def private_postgres(**settings: str) -> Iterator[Postgres]:
    """A cluster that exists for the length of a block."""
    folder = Path(tempfile.mkdtemp(prefix="oncehook-postgres-"))
    folder.chmod(0o755)
    server = Postgres(folder / "cluster", **settings)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run_sql(database: str, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, read from the database itself, independent of the code under test."""
    if database.startswith("sqlite:///"):
        with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"), timeout=10)) as connection:
            connection.isolation_level = None
            return connection.execute(statement).fetchall()
    if threading.current_thread() is not threading.main_thread():
        with _connect(database) as connection:
            return _fetch(connection, statement)
    try:
        return _fetch(_connection_of(database), statement)
    except psycopg.OperationalError:
        if not _last[database].closed:
            raise
        return _fetch(
            _connection_of(database), statement
        )  # its server was stopped since the last query, or its session was ended


_last: dict[str, psycopg.Connection] = {}
"""The connection of the main thread to the database of its last query. A new connection costs more than a query."""


def _connection_of(database: str) -> psycopg.Connection:
    if database not in _last or _last[database].closed:
        for former in _last.values():
            former.close()
        _last.clear()
        _last[database] = _connect(database)
    return _last[database]


def _connect(database: str) -> psycopg.Connection:
    connection = psycopg.connect(database, autocommit=True, prepare_threshold=None)
    for kind in ("json", "jsonb"):
        connection.adapters.register_loader(kind, TextLoader)  # as it is stored
    return connection


def _fetch(connection: psycopg.Connection, statement: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(statement.encode())
    return cursor.fetchall() if cursor.description else []
