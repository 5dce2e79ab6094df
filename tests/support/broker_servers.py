"""Private brokers, each in its own process on loopback: NATS, Redis, RabbitMQ, and librdkafka's mock of Kafka."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support import programs
from tests.support.servers import free_port
from tests.support.waiting import wait_until, wait_until_stopped

PASSWORD = "hidden-in-the-address"


class Server:
    """A server process that a test kills, pauses and starts again, with its data, on the same port."""

    scheme = ""
    user = "app"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def address(self, path: str, port: int | None = None) -> str:
        """The address of a queue with credentials. `port` is that of a proxy."""
        return f"{self.scheme}://{self.user}:{PASSWORD}@127.0.0.1:{port or self.port}/{path}"

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {}

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        wait_until(self._is_ready, f"{type(self).__name__} started", within=60, ignore=(OSError,))

    def _is_ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def _is_gone(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0

    def kill(self) -> None:
        """End the server with SIGKILL, and with it the processes that it started."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            wait_until(self._is_gone, f"{type(self).__name__} no longer listens")

    def pause(self) -> None:
        """Stop the server without ending it: its connections stay open, and it answers nothing."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def go_on(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def running(self) -> Iterator["Server"]:
        self.start()
        try:
            yield self
        finally:
            self.kill()


class NatsServer(Server):
    scheme = "nats"
    sync = "2m"

    def command(self) -> Sequence[str]:
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder}/data", sync_interval: "{self.sync}" }}\n'
            f'authorization {{ user: "{self.user}", password: "{PASSWORD}" }}\n'
        )
        return [str(Path(sys.executable).with_name("nats-server")), "-c", str(config)]


class RedisServer(Server):
    scheme = "redis"
    user = "default"

    def command(self) -> Sequence[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "requirepass": PASSWORD,
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        return [str(programs.find("redis")), *(f for k, v in options.items() for f in (f"--{k}", v))]


class RabbitServer(Server):
    """RabbitMQ with its own `epmd`, which Erlang needs for names of nodes."""

    scheme = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.node_port, self.epmd_port = free_port(), free_port()
        self.name = f"oncehook{secrets.token_hex(4)}@localhost"

    def command(self) -> Sequence[str]:
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(f"default_user = {self.user}\ndefault_pass = {PASSWORD}\n")
        server = programs.find("rabbitmq-server") / "rabbitmq-server"
        return ["sh", "-c", f'epmd & exec "{server}"']

    def environment(self) -> Mapping[str, str]:
        interface = "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none"
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.node_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": interface,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }


MOCK = """
import sys, threading
from confluent_kafka import Producer
cluster = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 3, "log_level": 0})
brokers = cluster.list_topics(timeout=30).brokers.values()
print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
threading.Event().wait()
"""


class KafkaMock(Server):
    """librdkafka's mock cluster of three brokers. It keeps its messages in memory: a killed one has lost them.

    It checks no credentials.
    """

    scheme = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.brokers = ""

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.brokers}"

    def address(self, path: str, port: int | None = None) -> str:
        return f"{self.origin}/{path}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", MOCK]

    def start(self) -> None:
        (self.folder / "log").write_bytes(b"")
        super().start()

    def _is_ready(self) -> bool:
        self.brokers = (self.folder / "log").read_text().strip()
        return bool(self.brokers)
