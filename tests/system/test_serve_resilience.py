"""`oncehook serve` with slow senders, a log that is not read, and a parent process that is killed."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import ONCEHOOK, Process, write_config
from tests.support.servers import Postgres
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def post(port: int, event_id: str) -> bytes:
    """Send one delivery over a new connection, and return the status line."""
    body = stripe_body(event_id)
    head = "".join(f"{name}: {value}\r\n" for name, value in stripe_headers(body).items())
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        request = f"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\n{head}content-length: {len(body)}\r\n\r\n"
        connection.sendall(request.encode() + body)
        return connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "begun", [b"", b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\nx-slow: "], ids=["nothing", "part"]
)
def test_a_connection_without_a_complete_request_head_is_closed(tmp_path: Path, begun: bytes) -> None:
    service = Process(write_config(tmp_path, f"sqlite:///{tmp_path / 'inbox.db'}", 'receive_timeout = "400ms"'))
    try:
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(begun)
            started = time.monotonic()
            assert connection.recv(100) == b""
            assert time.monotonic() - started < 5
        assert post(service.port, "evt_1") == b"HTTP/1.1 202 Accepted"
    finally:
        assert service.end() == 0


def test_a_connection_whose_second_request_head_is_incomplete_is_closed(tmp_path: Path) -> None:
    service = Process(write_config(tmp_path, f"sqlite:///{tmp_path / 'inbox.db'}", 'receive_timeout = "400ms"'))
    try:
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = connection.recv(4096)
            while b"alive" not in answer:
                answer += connection.recv(4096)
            connection.sendall(b"GET /healthz HTTP/1.1\r\nx-slow: ")
            assert connection.recv(100) == b""
    finally:
        assert service.end() == 0


def test_a_blocked_log_pipe_does_not_block_deliveries(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"sqlite:///{tmp_path / 'inbox.db'}")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [ONCEHOOK, "serve", "--config", config, "--port", "0"], stdout=subprocess.PIPE, stderr=writing, text=True
    )
    os.close(writing)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
        for number in range(600):  # more lines than a pipe holds
            assert post(port, f"evt_{number}") == b"HTTP/1.1 202 Accepted"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stdout.close()  # type: ignore[union-attr]
        os.close(reading)


def test_child_processes_end_when_their_parent_is_killed(tmp_path: Path, postgres: Postgres) -> None:
    database = postgres.database(migrated=True)
    service = Process(write_config(tmp_path, database), "--processes", "2")
    assert post(service.port, "evt_1") == b"HTTP/1.1 202 Accepted"
    service.kill()
    wait_until(lambda: not is_listening(service.port), "the child processes end without their parent", within=20)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
