"""`oncehook demo` as a process, with and without a terminal."""

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

DEMO = [sys.executable, "-m", "oncehook", "demo"]
SOURCES = {"stripe", "github", "shopify", "slack", "sendgrid"}


@contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A running demo without a terminal, with its temporary files in `folder`."""
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
    """The output up to the first line that matches the pattern."""
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


@pytest.mark.rest
def test_the_demo_accepts_other_deliveries_and_deletes_its_files(tmp_path: Path) -> None:
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
            with urllib.request.urlopen(base[1] + path) as response:
                assert response.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401") as rejection:
            urllib.request.urlopen(f"{base[1]}/webhooks/stripe", data=b"{}")
        rejection.value.close()
        send = ["send", "--config", str(config), "--duplicate", "2"]
        assert oncehook(*send, "stripe", "invoice.paid", "--to", f"{base[1]}/webhooks/stripe").count("duplicate") == 2
        key = f"file:{config.parent / 'sendgrid.pem'}"
        oncehook(*send, "sendgrid", "open", "--to", f"{base[1]}/webhooks/sendgrid", "--secret", key)
        assert '"receipt"' in oncehook("events", "--config", str(config), "--json")

        read_until(demo, " s  ")  # at least one check that counts the events of `oncehook send`
        demo.send_signal(signal.SIGTERM)
        output, errors = demo.communicate(timeout=30)
        assert (demo.returncode, errors) == (0, "")
        assert "BROKEN" not in output
        assert list(tmp_path.iterdir()) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_demo_stops_cleanly_on_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as demo:
        read_until(demo, " s  ")
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=30)
        assert (demo.returncode, errors) == (0, "")
        assert list(tmp_path.iterdir()) == []


def test_the_demo_ignores_the_database_of_the_environment(tmp_path: Path) -> None:
    precious = tmp_path / "precious.db"
    with running(tmp_path, "--port", "0", "--seconds", "1", ONCEHOOK_DATABASE=f"sqlite:///{precious}") as demo:
        output, _ = demo.communicate(timeout=30)
        assert demo.returncode == 0, output
        assert not precious.exists()


def test_a_port_in_use_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, "--port", str(port)) as demo:
            output, errors = demo.communicate(timeout=30)
    assert (demo.returncode, output) == (2, "")
    assert re.fullmatch(rf"oncehook: the demo cannot listen on 127\.0\.0\.1:{port}: .*--port {port + 1}.*\n", errors)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_draws_a_table_on_a_terminal(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    demo = subprocess.Popen([*DEMO, "--port", "0", "--seconds", "1"], stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    screen = b""
    while True:
        try:
            chunk = os.read(outer, 65536)
        except OSError:  # Linux raises it when the other side is closed
            break
        if not chunk:
            break
        screen += chunk
    os.close(outer)
    assert demo.wait(30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode())
    assert "sender behavior" in text and "each exactly once" in text
    assert '"event"' not in text and "Traceback" not in text
