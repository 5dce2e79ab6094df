"""`oncehook serve --processes`: several processes on one socket, under one parent."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from oncehook.cli import processes
from tests.support.command_line import run_process
from tests.support.events import Rows, stripe_body
from tests.support.serve import post_stripe, process
from tests.support.servers import children_of
from tests.support.waiting import wait_until


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_processes_share_the_port_are_restarted_and_stop_together(config: Path, rows: Rows) -> None:
    with process(config, "--processes", "2") as service:
        parent = service.process.pid
        bodies = [stripe_body(f"evt_{n}") for n in range(30)]
        assert {post_stripe(service.port, body).status_code for body in bodies} == {202}
        first, second = children_of(parent)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(set(children_of(parent)) - {first}) == 2, "the parent restarts the killed process")
        assert {post_stripe(service.port, body).status_code for body in bodies} == {200}
        children = children_of(parent)
        assert service.end() == 0
        assert second in children and not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(30,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_several_processes_on_sqlite_are_rejected(config: Path) -> None:
    done = run_process("serve", "--config", str(config), "--port", "0", "--processes", "2")
    assert done.returncode == 2 and "--processes needs PostgreSQL" in done.stderr


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (2, 2)])
def test_a_child_that_fails_at_start_stops_the_parent_with_its_exit_code(code: int, expected: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        command = [sys.executable, "-c", f"raise SystemExit({code})"]
        assert processes._supervise(1, command, listener, threading.Event(), None) == expected
