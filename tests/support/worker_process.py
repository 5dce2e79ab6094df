"""A worker process that a test can stop, continue and kill, and waiting for its work."""

import signal
import subprocess
import sys
from collections.abc import Callable

from tests.support.servers import run_sql
from tests.support.waiting import eventually

LEASE = 1.0
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status NOT IN ('processed', 'failed', 'ignored')"
DONE = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"


class WorkerProcess:
    """A process that runs `module` and has printed `ready`."""

    def __init__(self, database: str, *options: str, module: str = "tests.faults.ledger_worker") -> None:
        command = [sys.executable, "-m", module, database, str(LEASE), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


async def until_count(database: str, statement: str, condition: Callable[[int], bool]) -> None:
    """Wait until the number that the statement returns fulfils the condition."""
    await eventually(lambda: condition(run_sql(database, statement)[0][0]), statement, within=60)
