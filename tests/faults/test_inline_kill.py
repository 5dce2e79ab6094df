"""The process of an inline handler dies or is stopped: its event waits for the redelivery, its next attempt."""

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
from tests.support.servers import ask
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
        await asyncio.sleep(600)
"""

STATE = "SELECT status, attempts FROM webhook_receipts"
WAITS_FOR_DAYS = {
    "sqlite": "SELECT next_attempt_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+2 days') FROM webhook_receipts",
    "postgresql": "SELECT next_attempt_at > now() + interval '2 days' FROM webhook_receipts",
}


class Place:
    """An inline source on a database, its hooks, and what its provider sees."""

    def __init__(self, folder: Path, database: str, *settings: str) -> None:
        self.folder, self.database = folder, database
        self.config = folder / "oncehook.toml"
        lines = [f'database = "{database}"', 'lease = "1s"', *settings, "[sources.stripe]", 'mode = "inline"']
        self.config.write_text("\n".join([*lines, f'secrets = ["{STRIPE_SECRET}"]']) + "\n")
        (folder / "hooks.py").write_text(HOOKS.format(config=str(self.config)))
        migrate = [sys.executable, "-m", "oncehook", "migrate", "--config", str(self.config)]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
        ask(database, "CREATE TABLE ledger (event_id TEXT)")

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
        (row,) = ask(self.database, STATE)
        return row[0], row[1]

    def waits_for_days(self) -> bool:
        return bool(ask(self.database, WAITS_FOR_DAYS[self.database.partition(":")[0]])[0][0])


def check_redelivery_is_processed(place: Place, server: Process, attempts: int) -> None:
    assert place.waits_for_days(), "an inline receipt waits for its provider, not for a worker's retry"
    assert place.deliver(server) == (200, "processed")
    assert place.state() == ("processed", attempts)
    assert ask(place.database, "SELECT count(*) FROM ledger") == [(1,)]
    assert place.deliver(server) == (200, "duplicate")


@pytest.mark.parametrize("policy", ["retry", "dead_letter"])
def test_an_inline_event_of_a_killed_process_waits_for_its_redelivery(
    tmp_path: Path, database: str, policy: str
) -> None:
    place = Place(tmp_path, database)
    place.config.write_text(f'{place.config.read_text()}on_failure = "{policy}"\n')
    with place.serve(HANG="1") as server:
        answer = place.deliver_until_inside(server)
        server.kill()
        assert answer() == (0, "")
    assert place.state() == ("processing", 1)
    with place.serve() as server:
        wait_until(lambda: place.state()[0] != "processing")  # taken back when its lease expired
        assert place.state() == ("retrying", 1)
        check_redelivery_is_processed(place, server, attempts=2)


def test_an_inline_event_that_is_cut_off_by_sigterm_is_503_and_its_redelivery_is_processed(
    tmp_path: Path, database: str
) -> None:
    place = Place(tmp_path, database, 'stop_grace = "500ms"')
    with place.serve(HANG="1") as server:
        answer = place.deliver_until_inside(server)
        assert server.end() == 0
        assert answer() == (503, "")
    assert place.state() == ("retrying", 0), "no attempt is counted"
    with place.serve() as server:
        check_redelivery_is_processed(place, server, attempts=1)
