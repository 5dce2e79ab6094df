"""A worker process that a test can stop, continue and kill, and waiting for its work."""

import signal
from collections.abc import Callable

from tests.support.forks import Fork
from tests.support.servers import run_sql
from tests.support.waiting import eventually

LEASE = 1.0
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status NOT IN ('processed', 'failed', 'ignored')"
DONE = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"


class WorkerProcess(Fork):
    """A process that runs `module` and has printed `ready`."""

    def __init__(self, database: str, *options: str, module: str = "tests.faults.ledger_worker") -> None:
        super().__init__(module, database, str(LEASE), *options)
        assert self.first_line == "ready\n", f"the worker did not start: {self.first_line!r}"

    def end(self, number: int = signal.SIGKILL) -> int:
        return super().end(number)


async def until_count(database: str, statement: str, condition: Callable[[int], bool]) -> None:
    """Wait until the number that the statement returns fulfils the condition."""
    await eventually(lambda: condition(run_sql(database, statement)[0][0]), statement, within=60)
