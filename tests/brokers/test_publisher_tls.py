"""TLS to brokers: the certificate is verified against the host name, and its authority must be known."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, NotStored
from oncehook.model.errors import SendFailed
from tests.support import programs
from tests.support.broker_servers import PASSWORD, NatsServer, RabbitServer, RedisServer, Server
from tests.support.tls_server import issue, pem

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.xdist_group("brokers")]


class SecureNats(NatsServer):
    def command(self) -> Sequence[str]:
        command = super().command()
        config = self.folder / "nats.conf"
        tls = f'tls {{ cert_file: "{self.folder}/server.pem", key_file: "{self.folder}/server.pem" }}\n'
        config.write_text(config.read_text() + tls)
        return command


class SecureRedis(RedisServer):
    """Redis behind HAProxy, which ends TLS: the server from a wheel is built without it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plain = RedisServer(folder / "plain")

    def command(self) -> Sequence[str]:
        config = self.folder / "haproxy.cfg"
        config.write_text(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n"
            f"listen redis\n bind 127.0.0.1:{self.port} ssl crt {self.folder}/server.pem\n"
            f" server plain 127.0.0.1:{self.plain.port}\n"
        )
        return [str(programs.find("haproxy")), "-db", "-q", "-f", str(config)]

    def start(self) -> None:
        self.plain.start()
        super().start()

    def kill(self) -> None:
        super().kill()
        self.plain.kill()


class SecureRabbit(RabbitServer):
    def command(self) -> Sequence[str]:
        command = super().command()
        config = self.folder / "rabbitmq.conf"
        lines = [f"ssl_options.{name} = {self.folder}/server.pem" for name in ("cacertfile", "certfile", "keyfile")]
        listener = f"listeners.tcp = none\nlisteners.ssl.default = {self.port}\nssl_options.verify = verify_none\n"
        config.write_text(config.read_text() + listener + "\n".join(lines) + "\n")
        return command


@pytest.mark.parametrize(
    ("server_type", "path"),
    [
        (SecureNats, "missing"),
        (SecureRedis, "0/orders"),
        pytest.param(SecureRabbit, "missing", marks=pytest.mark.rest),  # it takes 4 s to start
    ],
)
async def test_certificate_is_verified_against_the_name_and_a_known_authority(
    server_type: type[Server],
    path: str,
    tmp_path: Path,
    publishers: Publishers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = issue("authority")
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "server.pem").write_bytes(pem(*issue("localhost", authority)))
    (tmp_path / "authority.pem").write_bytes(pem(authority[0]))
    with server_type(folder).running() as server:
        address = f"{server.scheme}+tls://{server.user}:{PASSWORD}@localhost:{server.port}/{path}"
        with pytest.raises(SendFailed, match="cannot be reached"):
            await publishers.publish(parse_broker(address), Message(key="k", body=b"{}"), timeout=10)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        try:
            await publishers.publish(parse_broker(address), Message(key="k", body=b"{}"), timeout=10)
        except NotStored:
            assert path == "missing", "a broker that answers over TLS says that it has no such queue"
        other = address.replace("localhost", "127.0.0.1")
        with pytest.raises(SendFailed, match="cannot be reached"):
            await publishers.publish(parse_broker(other), Message(key="k", body=b"{}"), timeout=10)
        await publishers.close()
