"""The demo, as a person starts it and as it judges itself."""

import asyncio
import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from oncehook.cli.demo_check import GuaranteeCheck, ResponseLog
from oncehook.cli.demo_screen import DemoSnapshot, LineOutput, describe_check, render
from oncehook.cli.demo_session import DemoSession
from oncehook.cli.demo_traffic import BEHAVIOURS
from oncehook.cli.serve import listen
from oncehook.concurrency.clock import SYSTEM
from oncehook.model.receipt import Receipt
from oncehook.model.states import State
from oncehook.observability import signals
from tests.support.servers import ask

DEMO = [sys.executable, "-m", "oncehook", "demo"]
SOURCES = {"stripe", "github", "shopify", "slack", "sendgrid"}


@contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """The demo without a terminal, with its temporary files under `folder`."""
    process = subprocess.Popen(
        [*DEMO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: "subprocess.Popen[str]", pattern: str) -> str:
    """What it printed up to the first line that has the pattern."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(f"the demo ended without {pattern!r}: {text}")


def oncehook(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "oncehook", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_can_be_used_while_it_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as demo:
        head = read_until(demo, "tail -f")
        base = re.search(r"Oncehook on (http://127\.0\.0\.1:\d+)", head)
        assert base is not None
        assert set(re.findall(rf"{base[1]}/webhooks/(\w+)   ", head)) == SOURCES
        config = next(tmp_path.glob("oncehook-demo-*/oncehook.toml"))
        assert str(config) in head
        assert {path.stat().st_mode & 0o777 for path in (config, config.parent / "sendgrid.pem")} == {0o600}
        read_until(demo, "[1-9][0-9]* events acked = ")

        for path in ("/", "/healthz", "/readyz"):
            with urllib.request.urlopen(base[1] + path) as answer:
                assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401") as refusal:
            urllib.request.urlopen(f"{base[1]}/webhooks/stripe", data=b"{}")
        refusal.value.close()
        send = ["send", "--config", str(config), "--duplicate", "2"]
        assert oncehook(*send, "stripe", "invoice.paid", "--to", f"{base[1]}/webhooks/stripe").count("duplicate") == 2
        key = f"file:{config.parent / 'sendgrid.pem'}"
        oncehook(*send, "sendgrid", "open", "--to", f"{base[1]}/webhooks/sendgrid", "--secret", key)
        assert '"receipt"' in oncehook("events", "--config", str(config), "--json")

        read_until(demo, " s  ")  # at least one check that counts the events from outside
        demo.send_signal(signal.SIGTERM)
        output, errors = demo.communicate(timeout=30)
        assert (demo.returncode, errors) == (0, "")
        assert "BROKEN" not in output
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_demo_ends_cleanly_on(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as demo:
        read_until(demo, " s  ")
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=30)
        assert (demo.returncode, errors) == (0, "")
        assert list(tmp_path.iterdir()) == []


def test_the_demo_never_touches_the_database_that_the_environment_names(tmp_path: Path) -> None:
    precious = tmp_path / "precious.db"
    with running(tmp_path, "--port", "0", "--seconds", "1", ONCEHOOK_DATABASE=f"sqlite:///{precious}") as demo:
        output, _ = demo.communicate(timeout=30)
        assert demo.returncode == 0, output
        assert not precious.exists()


def test_a_port_that_is_taken_is_one_clear_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, "--port", str(port)) as demo:
            output, errors = demo.communicate(timeout=30)
    assert (demo.returncode, output) == (2, "")
    assert re.fullmatch(rf"oncehook: the demo cannot listen on 127\.0\.0\.1:{port}: .*--port {port + 1}.*\n", errors)
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_the_demo_draws_a_table(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    demo = subprocess.Popen([*DEMO, "--port", "0", "--seconds", "1"], stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    screen = b""
    while True:
        try:
            chunk = os.read(outer, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not chunk:
            break
        screen += chunk
    os.close(outer)
    assert demo.wait(30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode())
    assert "what the senders did" in text and "each exactly once" in text
    assert '"event"' not in text and "Traceback" not in text


class RecordingView(LineOutput):
    """A view that remembers the last snapshot."""

    def show(self, snapshot: DemoSnapshot) -> None:
        self.last = snapshot


def test_senders_do_everything_and_the_promise_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "configure", lambda *_: None)
    session, view = DemoSession(tmp_path, listen("127.0.0.1", 0), 150), RecordingView()
    assert asyncio.run(session.run(view, 3))
    counts, check = view.last.counts, view.last.check
    assert all(counts.behaviours[name] for name in BEHAVIOURS), counts.behaviours
    assert counts.rejected.total() == sum(counts.behaviours[name] for name in ("forged", "stale", "malformed"))
    assert set(view.last.receipts) == SOURCES
    assert check.acked == check.receipts == counts.accepted.total() + counts.ignored.total()
    assert counts.unavailable.total() == 0
    assert {receipt.source for receipt in view.last.latest} <= SOURCES
    database = f"sqlite:///{tmp_path / 'oncehook.db'}"
    for table in ("effects", "entities", "email_events", "email_status"):  # every page has something to show
        assert ask(database, f"SELECT count(*) FROM webhook_{table}")[0][0] > 0, table


# -- how it judges ----------------------------------------------------------------------------------------------------


def ack(word: str, event_id: str) -> str:
    return f'{{"status":"{word}","event_id":"{event_id}","receipt":1}}'


def test_the_tally_counts_an_event_once_however_often_it_is_acked() -> None:
    log = ResponseLog()
    log.record("stripe", 202, ack("accepted", "evt_1"), ["evt_1"], genuine=True)
    log.record("stripe", 200, ack("duplicate", "evt_1"), ["evt_1"], genuine=True)
    assert log.check(receipts=1).holds
    assert (log.counts.deliveries["stripe"], log.counts.duplicate["stripe"]) == (2, 1)


def test_an_event_that_is_accepted_twice_breaks_the_promise() -> None:
    log = ResponseLog()
    for _ in range(2):
        log.record("stripe", 202, ack("accepted", "evt_1"), ["evt_1"], genuine=True)
    assert describe_check(log.check(receipts=1)) == "BROKEN: 1 events accepted twice"


def test_an_acked_event_without_a_receipt_breaks_the_promise() -> None:
    log = ResponseLog()
    log.record("stripe", 202, ack("accepted", "evt_1"), ["evt_1"], genuine=True)
    assert describe_check(log.check(receipts=0)) == "BROKEN: 1 events acked but 0 receipts"


def test_a_forged_delivery_that_is_accepted_breaks_the_promise() -> None:
    log = ResponseLog()
    log.record("stripe", 202, ack("accepted", "evt_1"), [], genuine=False)
    assert "1 forged deliveries accepted" in describe_check(log.check(receipts=1))


def test_a_genuine_delivery_that_is_refused_breaks_the_promise() -> None:
    log = ResponseLog()
    log.record("stripe", 401, "{}", ["evt_1"], genuine=True)
    assert describe_check(log.check(receipts=0)) == "BROKEN: 1 genuine deliveries rejected"


def test_an_answer_that_is_none_of_the_doors_breaks_the_promise() -> None:
    log = ResponseLog()
    log.record("stripe", 500, "Internal Server Error", ["evt_1"], genuine=True)
    assert not log.check(receipts=0).holds


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_the_table_fits_the_terminal(width: int, height: int) -> None:
    now = DemoSnapshot(
        sorted(SOURCES), seconds=3725, rate=1234, check=GuaranteeCheck(acked=1_234_567, receipts=1_234_567)
    )
    for name in ("deliveries", "accepted", "duplicate", "ignored", "rejected"):
        getattr(now.counts, name).update(dict.fromkeys(SOURCES, 123_456))
    now.counts.behaviours.update(dict.fromkeys(BEHAVIOURS, 99_999))
    console = Console(width=width, height=height, file=io.StringIO(), record=True)
    console.print(render(now, events=3))
    lines = console.export_text().splitlines()
    assert len(lines) <= 18
    assert all(len(line) <= width for line in lines)
    assert "1,234,567 events acked = 1,234,567 receipts, each exactly once." in " ".join(lines[-2:])


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_state_and_no_word_of_the_proof_is_cut(width: int) -> None:
    latest = [
        Receipt(
            receipt=n, source="sendgrid", provider="sendgrid", event_id=f"evt_{n:030d}", type="invoice.paid",
            object_id=None, occurred_at=None, received_at=SYSTEM.datetime(), status=state, attempts=1,
            next_attempt_at=None, processed_at=None, last_error=None, duplicates=12, correlation_id=None,
            delivery_id=None, replays=0, failed_at=None, unhandled_at=None,
        )
        for n, state in enumerate(State)
    ]  # fmt: skip
    now = DemoSnapshot(sorted(SOURCES), check=GuaranteeCheck(acked=123_456, receipts=123_456), latest=latest)
    now.counts.rejected["stripe"], now.counts.unavailable["stripe"] = 12_345, 678
    console = Console(file=io.StringIO(), width=width)
    console.print(render(now, events=len(latest)))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert all(f" {state.value} " in text for state in State)
    assert "123,456 events acked = 123,456 receipts, each exactly once." in text
    assert "12,345 rejected deliveries left no receipt. 678 deliveries will be retried." in text
