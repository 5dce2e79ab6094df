"""SIGKILL between all steps of the relay: at least one call, always with the same key, settled once."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from tests.faults.relay_worker import HEIR
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually

# Each test starts processes: on SQLite only with --torture, as the statements are tested on both elsewhere.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.torture), "postgres"], indirect=True),
]

POINTS = {
    # where the process is killed → how often the target was called in the end
    "before the commit": 1,
    "after the commit": 1,
    "after the lease": 1,
    "before the call": 1,
    "after the call": 2,  # the one gap: the call was made, but not recorded
    "before settling": 2,
    "after settling": 1,
}


class RelayProcess:
    def __init__(self, database: str, calls: Path, point: str) -> None:
        command = [sys.executable, "-m", "tests.faults.relay_worker", database, str(calls), point]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def killed(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", POINTS)
async def test_kill_at_any_step_repeats_the_call_only_with_the_same_key(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, tmp_path: Path, point: str
) -> None:
    calls = tmp_path / "calls"
    inbox = make_inbox(worker=False)
    async with inbox.lifespan():
        same_key = [make_claim("evt_1"), make_claim("evt_2")]
        await inbox._runtime.store.claims.insert(same_key)
        victim = RelayProcess(database, calls, point)
        try:
            await eventually(victim.killed, within=60)
        finally:
            assert victim.end() == -signal.SIGKILL
        heir = RelayProcess(database, calls, HEIR)
        try:
            await eventually(
                lambda: rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'") == [(1,)], within=60
            )
            await eventually(
                lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(2,)], within=60
            )
        finally:
            assert heir.end() == 0
    made = calls.read_text().splitlines()
    assert len(made) == POINTS[point], "the target was not called as often as it must be"
    assert len(set(made)) == 1, "a repeated call had another key"
    assert rows("SELECT count(*) FROM webhook_effects") == [(1,)]
    assert rows("SELECT count(*) FROM webhook_noops") == [(1,)]
