"""The process of an inline handler is killed or stopped: the provider's redelivery is the event's next attempt."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.serve import Process, process
from tests.support.servers import run_sql
from tests.support.waiting import wait_until

HOOKS = """
import asyncio
import os
from pathlib import Path

from oncehook import Inbox

inbox = Inbox(config={config!r})


@inbox.on("stripe", "*")
async def write(event, tx):
    await tx.execute("INSERT INTO ledger (event_id) VALUES ('evt_1')")
    Path("inside").touch()
    if "HANG" in os.environ:
        await asyncio.Event().wait()
"""

STATE = "SELECT status, attempts FROM webhook_receipts"
WAITS_FOR_DAYS = {
    "sqlite": "SELECT next_attempt_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+2 days') FROM webhook_receipts",
    "postgresql": "SELECT next_attempt_at > now() + interval '2 days' FROM webhook_receipts",
}


class InlineService:
    """An inline source on a database, with its handlers and a provider that delivers to it."""

    def __init__(self, folder: Path, database: str, *settings: str) -> None:
        self.folder, self.database = folder, database
        self.config = folder / "oncehook.toml"
        lines = [f'database = "{database}"', 'lease = "1s"', *settings, "[sources.stripe]", 'mode = "inline"']
        self.config.write_text("\n".join([*lines, f'secrets = ["{STRIPE_SECRET}"]']) + "\n")
        (folder / "hooks.py").write_text(HOOKS.format(config=str(self.config)))
        migrate = [sys.executable, "-m", "oncehook", "migrate", "--config", str(self.config)]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
        run_sql(database, "CREATE TABLE ledger (event_id TEXT)")

    def serve(self, **environment: str) -> Any:
        return process(self.config, app="hooks:inbox", cwd=self.folder, **environment)

    def deliver(self, server: Process) -> tuple[int, str]:
        body = stripe_body("evt_1")
        url = f"http://127.0.0.1:{server.port}/webhooks/stripe"
        try:
            answer = httpx.post(url, content=body, headers=stripe_headers(body), timeout=30, verify=False)
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.json().get("status", "")

    def deliver_until_inside(self, server: Process) -> Callable[[], tuple[int, str]]:
        """Start a delivery and wait until its handler runs; the return value waits for the answer."""
        answers: list[tuple[int, str]] = []
        sending = threading.Thread(target=lambda: answers.append(self.deliver(server)))
        sending.start()
        wait_until(lambda: (self.folder / "inside").exists())

        def answer() -> tuple[int, str]:
            sending.join(30)
            return answers[0]

        return answer

    def state(self) -> tuple[str, int]:
        (row,) = run_sql(self.database, STATE)
        return row[0], row[1]

    def waits_for_days(self) -> bool:
        return bool(run_sql(self.database, WAITS_FOR_DAYS[self.database.partition(":")[0]])[0][0])


def assert_redelivery_is_processed(service: InlineService, server: Process, attempts: int) -> None:
    assert service.waits_for_days(), "an inline receipt waits for its provider, not for a worker's retry"
    assert service.deliver(server) == (200, "processed")
    assert service.state() == ("processed", attempts)
    assert run_sql(service.database, "SELECT count(*) FROM ledger") == [(1,)]
    assert service.deliver(server) == (200, "duplicate")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["retry", "dead_letter"])
def test_inline_event_of_a_killed_process_waits_for_its_redelivery(tmp_path: Path, database: str, policy: str) -> None:
    service = InlineService(tmp_path, database)
    service.config.write_text(f'{service.config.read_text()}on_failure = "{policy}"\n')
    with service.serve(HANG="1") as server:
        answer = service.deliver_until_inside(server)
        server.kill()
        assert answer() == (0, "")
    assert service.state() == ("processing", 1)
    with service.serve() as server:
        wait_until(lambda: service.state()[0] != "processing")  # taken back when its lease expired
        assert service.state() == ("retrying", 1)
        assert_redelivery_is_processed(service, server, attempts=2)


@pytest.mark.sampled(1)
def test_inline_event_cut_off_by_sigterm_gets_503_and_its_redelivery_is_processed(
    tmp_path: Path, database: str
) -> None:
    service = InlineService(tmp_path, database, 'stop_grace = "500ms"')
    with service.serve(HANG="1") as server:
        answer = service.deliver_until_inside(server)
        assert server.end() == 0
        assert answer() == (503, "")
    assert service.state() == ("retrying", 0), "no attempt is counted"
    with service.serve() as server:
        assert_redelivery_is_processed(service, server, attempts=1)
