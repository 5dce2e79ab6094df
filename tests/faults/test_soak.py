"""A service under load does not use more and more memory and file descriptors."""

import asyncio
import random
import re
from pathlib import Path

import pytest

from tests.support.counts import Repetitions
from tests.support.recording_senders import Ledger, assert_every_ack_is_recorded, send
from tests.support.serve import Process, write_config
from tests.support.waiting import let_time_pass

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.torture,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="memory and descriptors are read in /proc"),
]

MAX_MEGABYTES, MAX_DESCRIPTORS = 15.0, 15


def megabytes(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
async def test_memory_and_descriptors_do_not_grow_under_load(
    database: str, tmp_path: Path, repetitions: Repetitions
) -> None:
    """On PostgreSQL, `python -m proof.load` measures the same for five minutes."""
    ledger = Ledger(random.randrange(2**32))
    service = Process(write_config(tmp_path, database, 'log_level = "error"'))
    pid = service.process.pid
    try:
        senders = [asyncio.create_task(send(ledger, service.port)) for _ in range(4)]
        await let_time_pass(repetitions(15, 60))
        before = megabytes(pid), descriptors(pid)
        await let_time_pass(repetitions(30, 240))
        after = megabytes(pid), descriptors(pid)
        assert service.end() == 0
        await asyncio.wait_for(asyncio.gather(*senders), 30)
    finally:
        service.process.kill()
    assert_every_ack_is_recorded(database, ledger)
    assert after[0] - before[0] < MAX_MEGABYTES, f"{before[0]:.0f} MB, then {after[0]:.0f} MB"
    assert after[1] - before[1] < MAX_DESCRIPTORS, f"{before[1]} descriptors, then {after[1]}"
