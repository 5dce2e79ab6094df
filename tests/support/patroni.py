"""A private PostgreSQL cluster under Patroni: etcd, and two nodes of which one is the synchronous standby.

Patroni starts and stops PostgreSQL, promotes the standby when the primary dies, and makes the old primary follow.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.support import programs
from tests.support.servers import Postgres, children_of, free_port, in_memory, migrate

SCOPE = "oncehook"
LEADER, SYNC, REPLICA = "leader", "sync_standby", "replica"


class Node:
    """A PostgreSQL server with its Patroni."""

    def __init__(self, name: str, folder: Path, etcd: int, *, synchronous: bool) -> None:
        self.name = name
        self.folder = folder / name
        self.port, self.api = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.folder.mkdir()
        self.config = self.folder / "patroni.json"
        self.config.write_text(json.dumps(self._settings(etcd, synchronous), indent=1))
        for path in (self.folder, self.config):
            if os.geteuid() == 0:
                shutil.chown(path, Postgres._owner())

    def _settings(self, etcd: int, synchronous: bool) -> dict[str, Any]:
        trusted = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        return {
            "scope": SCOPE,
            "name": self.name,
            "log": {"level": "INFO"},
            "restapi": {"listen": f"127.0.0.1:{self.api}", "connect_address": f"127.0.0.1:{self.api}"},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "maximum_lag_on_failover": 2**40,
                    "primary_start_timeout": 0,  # fail over at once instead of restarting a dead primary
                    "synchronous_mode": synchronous,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "remove_data_directory_on_diverged_timelines": True,
                        "parameters": {"wal_log_hints": "on", "max_connections": 100, "wal_keep_size": "512MB"},
                        "pg_hba": trusted,
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}, "no-sync"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.folder / "data"),
                "bin_dir": str(programs.find("postgres")),
                "pgpass": str(self.folder / "pgpass"),
                "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}},
                "parameters": {"unix_socket_directories": "", "shared_buffers": "32MB"},
            },
        }

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_as_owner(), sys.executable, "-m", "patroni", str(self.config)],
                stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip

    def kill_postgres(self) -> None:
        """Kill all processes of PostgreSQL. Patroni stays."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            postmaster = int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
            victims = [postmaster, *children_of(postmaster)]
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill Patroni and PostgreSQL, as a host that loses its power."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.kill_postgres()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def accepts_writes(self) -> bool:
        try:
            with psycopg.connect(self.url("postgres")) as connection:
                return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        except psycopg.OperationalError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


def _as_owner() -> list[str]:
    """Run a program as the owner of PostgreSQL's files, which cannot be root.

    That account may be unable to read this Python's folder, so it keeps the capability for it.
    """
    if os.geteuid() != 0:
        return []
    owner = Postgres._owner()
    group = str(pwd.getpwnam(owner).pw_gid)
    account = [f"--reuid={owner}", f"--regid={group}", "--clear-groups"]
    return ["setpriv", *account, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


class Cluster:
    """Two nodes and etcd. `url` names both nodes, as the setting `database` does."""

    def __init__(self, folder: Path, *, synchronous: bool) -> None:
        self.folder = folder
        self.etcd_port = free_port()
        self.etcd: subprocess.Popen[bytes] | None = None
        self.nodes = [Node(f"node{n}", folder, self.etcd_port, synchronous=synchronous) for n in (1, 2)]
        self.follower = SYNC if synchronous else REPLICA

    def start(self) -> "Cluster":
        self._start_etcd()
        self.nodes[0].start()
        self.wait(lambda: self.roles().get("node1") == LEADER, "node1 did not become the leader")
        self.nodes[1].start()
        self.until_replicating()
        return self

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": str(self.folder / "etcd"), "listen-client-urls": client, "advertise-client-urls": client,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}",
        }  # fmt: skip
        with (self.folder / "etcd.log").open("ab") as log:
            command = [str(programs.find("etcd")), *(f"--{name}={value}" for name, value in options.items())]
            self.etcd = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)

    def roles(self) -> dict[str, str]:
        """The role of each running node, as Patroni reports it."""
        for node in self.nodes:
            if node.process is not None:
                with contextlib.suppress(OSError, ValueError):
                    reply = urllib.request.urlopen(f"http://127.0.0.1:{node.api}/cluster", timeout=2)
                    members = json.load(reply)["members"]
                    return {m["name"]: m["role"] for m in members if m["state"] in ("running", "streaming")}
        return {}

    def leader(self) -> Node:
        self.wait(lambda: LEADER in self.roles().values(), "there is no leader")
        roles = self.roles()
        return next(node for node in self.nodes if roles.get(node.name) == LEADER)

    def until_other_leader(self, old: Node) -> None:
        """Wait until the other node leads and accepts writes."""

        def is_promoted() -> bool:
            roles = self.roles()
            return any(roles.get(node.name) == LEADER and node.accepts_writes() for node in self.nodes if node != old)

        self.wait(is_promoted, "the standby was not promoted")

    def create_database(self, name: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        migrate(self.url(name))

    def until_replicating(self) -> None:
        """Wait until one node leads and the other follows."""
        expected = sorted([LEADER, self.follower])
        self.wait(lambda: sorted(self.roles().values()) == expected, "the standby does not follow", 90)

    def url(self, database: str) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def wait(self, condition: Callable[[], bool], failure: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            logs = "\n".join(node.log() for node in self.nodes if node.process is not None)
            assert time.monotonic() < deadline, f"{failure}\n{logs}"
            time.sleep(0.1)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        if self.etcd is not None:
            self.etcd.kill()
            self.etcd.wait()


@contextlib.contextmanager
def patroni_cluster(*, synchronous: bool = True) -> Iterator[Cluster]:
    """A cluster that exists for the length of a block."""
    folder = Path(tempfile.mkdtemp(prefix="oncehook-patroni-", dir=in_memory()))
    folder.chmod(0o755)
    cluster = Cluster(folder, synchronous=synchronous)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
