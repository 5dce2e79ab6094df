"""The thread in which an inbox runs: the exit of its process, and processes without real threads."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.servers import run_sql, sqlite_file
from tests.support.wsgi import deliver, wsgi_inbox

STATUS = "SELECT event_id, status FROM webhook_receipts ORDER BY event_id"


def test_process_that_exits_stops_its_inbox_and_a_running_handler_ends(tmp_path: Path) -> None:
    script = """
import logging, sys, threading
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from tests.support.wsgi import deliver, wsgi_inbox
from tests.support.waiting import wait_until

inbox = wsgi_inbox(sys.argv[1], worker=True)
running = threading.Event()

@inbox.on("stripe", "*")
def handle(event):
    running.set()
    wait_until(lambda: not inbox._runtime.is_running, "the exit stops the inbox")

assert deliver(inbox, "evt_1") == 202
assert running.wait(30)
"""
    database = sqlite_file(tmp_path / "inbox.db")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script, database], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["processed stripe invoice.paid evt_1 attempt 1", "stopped"]
    assert run_sql(database, STATUS) == [("evt_1", "processed")]


@pytest.mark.parametrize(
    ("module", "contents", "message"),
    [
        ("gevent.monkey", {"is_module_patched": lambda name: name == "threading"}, "has replaced the threads"),
        ("eventlet.patcher", {"is_monkey_patched": lambda name: name == "thread"}, "has replaced the threads"),
        ("uwsgi", {"opt": {"http": b":80"}}, "uWSGI needs `enable-threads = true`"),
    ],
    ids=["gevent", "eventlet", "uwsgi"],
)
def test_process_without_real_threads_is_told_what_to_do(
    sqlite: str,
    emitted: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    contents: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**contents))
    assert deliver(wsgi_inbox(sqlite), "evt_1") == 503
    assert [message in fields["detail"] for line, fields in emitted if line == "start_failed"] == [True]
