"""EventBridge → SQS by ministack, a stand-in for AWS, in its own environment, because of its pins.

Installing it takes about half a minute, so only long runs use it.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-ministack"
VERSION = "1.5.33"


class Ministack:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def call(self, target: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation, such as `AmazonSQS.CreateQueue` or `AWSEvents.PutRule`, and return its response."""
        service, version = ("sqs", "1.0") if target.startswith("AmazonSQS") else ("events", "1.1")
        request = urllib.request.Request(
            self.url,
            json.dumps(parameters).encode(),
            {
                "Content-Type": f"application/x-amz-json-{version}",
                "X-Amz-Target": target,
                "Authorization": f"AWS4-HMAC-SHA256 Credential=testing/20260101/eu-central-1/{service}/aws4_request",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"{}")  # type: ignore[no-any-return]

    def responds(self) -> bool:
        self.call("AmazonSQS.ListQueues")
        return True

    def queue_behind_a_bus(self, name: str, source: str) -> str:
        """The address of a new queue, to which a rule sends the events of the bus `name` that have this source."""
        queue: str = self.call("AmazonSQS.CreateQueue", QueueName=name)["QueueUrl"]
        attributes = self.call("AmazonSQS.GetQueueAttributes", QueueUrl=queue, AttributeNames=["QueueArn"])
        self.call("AWSEvents.CreateEventBus", Name=name)
        pattern = json.dumps({"source": [source]})
        self.call("AWSEvents.PutRule", Name=name, EventBusName=name, EventPattern=pattern)
        target = {"Id": "queue", "Arn": attributes["Attributes"]["QueueArn"]}
        self.call("AWSEvents.PutTargets", Rule=name, EventBusName=name, Targets=[target])
        return queue

    def put_event(self, bus: str, source: str, type_: str, detail: Any) -> None:
        entry = {"EventBusName": bus, "Source": source, "DetailType": type_, "Detail": json.dumps(detail)}
        self.call("AWSEvents.PutEvents", Entries=[entry])


@contextmanager
def ministack(folder: Path) -> Iterator[Ministack]:
    """A private server. The first call makes its environment."""
    program = ENVIRONMENT / "bin" / "ministack"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        pip = str(ENVIRONMENT / "bin" / "pip")
        subprocess.run([pip, "install", "-q", f"ministack=={VERSION}"], check=True, stderr=subprocess.DEVNULL)
    port = free_port()
    settings = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1"}
    with (folder / "ministack.log").open("wb") as log:
        process = subprocess.Popen([program], stdout=log, stderr=log, cwd=folder, env={**os.environ, **settings})
    server = Ministack(port)
    try:
        wait_until(server.responds, "ministack responds", ignore=(OSError,))
        yield server
    finally:
        process.terminate()
        process.wait(10)
