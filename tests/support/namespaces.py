"""Hosts as network namespaces: each has a link to its clients and another to the database. Needs root on Linux."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.support import programs
from tests.support.serve import ONCEHOOK
from tests.support.servers import Postgres
from tests.support.waiting import wait_until

PORT = 8000


def why_impossible() -> str:
    """Why this machine has no network namespaces for tests. Empty if it has."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"oncehook-probe-{os.getpid()}"
    if subprocess.run([programs.find("ip"), "netns", "add", name], capture_output=True).returncode:
        return "this kernel or container allows no network namespaces"
    _ip("netns", "del", name)
    return ""


def _ip(*arguments: str) -> None:
    subprocess.run([programs.find("ip"), *arguments], check=True, capture_output=True)


class Host:
    """A namespace with two links. `address` is where clients reach it, `gateway` where it reaches the database."""

    def __init__(self, number: int) -> None:
        subnet = f"10.{random.randrange(64, 250)}.{random.randrange(250)}"
        self.name = f"oncehook-{os.getpid()}-{number}"
        self.links = {"clients": f"oh{os.getpid()}c{number}", "database": f"oh{os.getpid()}d{number}"}
        self.address, self.gateway = f"{subnet}.2", f"{subnet}.5"
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def connected(self) -> Iterator["Host"]:
        _ip("netns", "add", self.name)
        try:
            _ip("-n", self.name, "link", "set", "lo", "up")
            self._add_link("clients", self.address.removesuffix("2") + "1", self.address)
            self._add_link("database", self.gateway, self.gateway.removesuffix("5") + "6")
            yield self
        finally:
            self.kill()
            _ip("netns", "del", self.name)  # with its ends of the links, and so with both ends

    def _add_link(self, kind: str, outside: str, inside: str) -> None:
        name, peer = self.links[kind], f"{kind[0]}0"
        _ip("link", "add", name, "type", "veth", "peer", "name", peer, "netns", self.name)
        _ip("addr", "add", f"{outside}/30", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", self.name, "addr", "add", f"{inside}/30", "dev", peer)
        _ip("-n", self.name, "link", "set", peer, "up")

    def cut(self) -> None:
        """Cut the link to the database. Connections stay half open: neither end learns of it."""
        _ip("link", "set", self.links["database"], "down")

    def heal(self) -> None:
        _ip("link", "set", self.links["database"], "up")

    def start(self, folder: Path, *options: str) -> None:
        """Start `oncehook serve hooks:inbox` in this namespace, with the configuration in `folder`."""
        inside = [str(programs.find("ip")), "netns", "exec", self.name]
        command = [*inside, str(ONCEHOOK), "serve", "hooks:inbox", "--config", "oncehook.toml", "--host", "0.0.0.0"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(PORT), *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=log
            )
        wait_until(self.is_ready, f"the host starts: {folder / 'log'}", ignore=(httpx.HTTPError,))

    def is_ready(self) -> bool:
        return httpx.get(f"http://{self.address}:{PORT}/readyz", timeout=3).status_code == 200

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Host(number).connected()) for number in range(2)]


def admit(server: Postgres) -> None:
    """Let the hosts connect to a private cluster that listens on every address."""
    with (server.folder / "data" / "pg_hba.conf").open("a") as file:
        file.write("host all all 10.0.0.0/8 trust\n")
    server.sql("SELECT pg_reload_conf()")
