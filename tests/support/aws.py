"""A private stand-in for AWS: SQS and S3 by moto, in its own process on loopback.

All tests of a run share it, and each makes its own queues and buckets. The first test that asks for it starts it.
"""

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.servers import free_port

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "eu-central-1"}


class Moto:
    """The stand-in. `environment` leads AWS's clients to it."""

    def __init__(self, port: int) -> None:
        self.port = port

    @classmethod
    def shared(cls, folder: Path) -> "Moto":
        """The server of a test run, whose processes all use this folder."""
        with (folder / "moto.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = folder / "moto.json"
            if not file.exists():
                file.write_text(json.dumps(_start(folder)))
            return cls(json.loads(file.read_text())["port"])

    @staticmethod
    def stop_shared(folder: Path) -> None:
        """Stop the server of a test run, if a test started it."""
        file = folder / "moto.json"
        if file.exists():
            os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that uses this server."""
        return environment(self.url)

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation of SQS as JSON, independent of the code under test, and return its response."""
        request = urllib.request.Request(
            self.url,
            json.dumps(parameters).encode(),
            {
                "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Target": f"Amazon{service.upper()}.{operation}",
                "Authorization": f"AWS4-HMAC-SHA256 Credential=testing/20260101/eu-central-1/{service}/aws4_request",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"{}")  # type: ignore[no-any-return]

    def queue(self, name: str = "", **attributes: str) -> str:
        """The address of a new queue. With `name` ending in .fifo, a FIFO queue."""
        name = f"q{secrets.token_hex(6)}{name}"
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        address: str = self.call("sqs", "CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        return address

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"b{secrets.token_hex(6)}"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request")
        with urllib.request.urlopen(request, timeout=30):
            return name


def environment(url: str) -> dict[str, str]:
    """The variables that lead AWS's clients to this address, for example that of a proxy."""
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}


def _start(folder: Path) -> dict[str, int]:
    """Start the server so that it outlives this process."""
    port = free_port()
    with (folder / "moto.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + 60
    while not _listens(port):
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"moto did not start: {(folder / 'moto.log').read_text()[-2000:]}")
        time.sleep(0.02)
    server.returncode = 0  # it is not waited for
    return {"port": port, "pid": server.pid}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
