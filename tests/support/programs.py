"""The server programs that the tests need: found on this machine, or installed from Debian's packages.

`install_missing` runs once, before any test starts, and installs everything that is missing in one step. Afterwards
`find` only searches: a test never installs anything.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LOCK_SECONDS = 600.0
"""How long to wait for another process that holds apt's lock, such as an unattended upgrade."""

_LOCKED = ("Could not get lock", "Unable to acquire", "Unable to lock")


@dataclass(frozen=True)
class Program:
    """A program that tests start, and where it comes from."""

    name: str
    package: str
    find: Callable[[], Path | None]
    purpose: str


def _on_path(*names: str) -> Path | None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)


def _find_postgres() -> Path | None:
    """The folder with initdb and postgres. Debian does not put it on PATH."""
    initdb = shutil.which("initdb")
    candidates = [Path(initdb).resolve().parent] if initdb else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in candidates if (folder / "postgres").exists()), None)


def _find_rabbitmq() -> Path | None:
    """The folder with rabbitmq-server itself. Debian's script on PATH insists on the account `rabbitmq`."""
    candidates = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"), reverse=True)
    return next((folder for folder in candidates if (folder / "rabbitmq-server").exists()), None)


PROGRAMS = {
    program.name: program
    for program in (
        Program("postgres", "postgresql", _find_postgres, "the PostgreSQL server (initdb, postgres)"),
        Program("etcd", "etcd-server", lambda: _on_path("etcd"), "etcd, in which Patroni keeps its leader lock"),
        Program("pgbouncer", "pgbouncer", lambda: _on_path("pgbouncer"), "the connection pooler PgBouncer"),
        Program("redis", "redis-server", lambda: _on_path("redis-server"), "the cache Redis"),
        Program(
            "chromium",
            "chromium",
            lambda: _on_path("chromium", "chromium-browser", "google-chrome", "chrome"),
            "a browser for the tests of the dashboard",
        ),
        Program("haproxy", "haproxy", lambda: _on_path("haproxy"), "the load balancer HAProxy"),
        Program("ip", "iproute2", lambda: _on_path("ip"), "network namespaces (ip)"),
        Program("prometheus", "prometheus", lambda: _on_path("prometheus"), "Prometheus for the alert rules"),
        Program("promtool", "prometheus", lambda: _on_path("promtool"), "Prometheus's tool for the alert rules"),
        Program("redis-server", "redis-server", lambda: _on_path("redis-server"), "the Redis server"),
        Program("rabbitmq-server", "rabbitmq-server", _find_rabbitmq, "the RabbitMQ server"),
    )
}


def find(name: str) -> Path:
    """The path of a program; ends the run with a sentence on what to install if it is missing."""
    found = PROGRAMS[name].find()
    if found is None:
        sys.exit(_missing_message([PROGRAMS[name]]))
    return found


def install_missing(names: Sequence[str] = tuple(PROGRAMS)) -> None:
    """Install the missing programs of `names` in one step, as root on Debian; elsewhere end with what to install."""
    missing = [PROGRAMS[name] for name in names if PROGRAMS[name].find() is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(_missing_message(missing))
    packages = sorted({program.package for program in missing})
    print(f"Installing what the tests need: {', '.join(packages)}", file=sys.stderr, flush=True)
    # The tests need the server programs, not the cluster that the package would create and start.
    Path("/etc/postgresql-common").mkdir(exist_ok=True)
    conf = Path("/etc/postgresql-common/createcluster.conf")
    if not conf.exists():
        conf.write_text("create_main_cluster = false\n")
    run_apt("update", "-qq")
    run_apt("install", "-y", "-qq", *packages)
    still = [program for program in missing if program.find() is None]
    if still:
        sys.exit(_missing_message(still))


def run_apt(*arguments: str, patience: float = LOCK_SECONDS) -> None:
    """Run apt-get; while another process holds its lock, wait and try again for up to `patience` seconds."""
    # RUNLEVEL=1 keeps Debian's packages from starting their services.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C"}
    deadline = time.monotonic() + patience
    announced = False
    while True:
        done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if not any(text in done.stderr for text in _LOCKED) or time.monotonic() > deadline:
            sys.exit(f"`apt-get {' '.join(arguments)}` failed: {done.stderr.strip()[-2000:]}")
        if not announced:
            print("Another process holds apt's lock: waiting for it", file=sys.stderr, flush=True)
            announced = True
        time.sleep(1)


def _missing_message(missing: Sequence[Program]) -> str:
    purposes = "; ".join(program.purpose for program in missing)
    packages = " ".join(sorted({program.package for program in missing}))
    return (
        f"The tests need programs that were not found: {purposes}. "
        f"Install them, on Debian with `apt-get install {packages}`, or put their folder on PATH."
    )


if __name__ == "__main__":
    install_missing()
