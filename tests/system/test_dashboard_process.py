"""The dashboard of `oncehook serve`: its printed URL, several processes, a stopping service, and odd requests."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.serve import Process, process, request, write_config
from tests.support.servers import Postgres


def printed_url(service: Process) -> str:
    """The sign-in URL that `serve` printed."""
    assert service.process.stdout is not None
    for line in service.process.stdout:
        match = re.search(r"(http://\S+/\?token=\S+)", line)
        if match:
            return match[1]
    raise AssertionError("serve must print a sign-in URL")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, f"sqlite:///{tmp_path / 'inbox.db'}")


def test_printed_url_signs_in_and_changes_at_each_start(config: Path) -> None:
    tokens = []
    for _ in range(2):
        with process(config) as service:
            url = printed_url(service)
            tokens.append(url.rpartition("=")[2])
            with httpx.Client(follow_redirects=True, timeout=20, verify=False) as browser:
                page = browser.get(url)
                assert page.status_code == 200 and "No events yet" in page.text
                assert str(page.url) == f"http://127.0.0.1:{service.port}/"
    assert tokens[0] != tokens[1]


def test_option_no_dashboard_leaves_only_a_static_page(config: Path) -> None:
    with process(config, "--no-dashboard") as service:
        base = f"http://127.0.0.1:{service.port}"
        assert "This inbox is running" in httpx.get(base, timeout=20, verify=False).text
        for path in ("/events", "/api/events", "/sign-in", "/static/style.css"):
            assert httpx.get(base + path, timeout=20, verify=False).status_code == 404
        assert service.end() == 0


def test_password_in_place_of_its_hash_is_a_usage_error_of_one_line(config: Path) -> None:
    with config.open("a") as file:
        file.write('[dashboard.users.jane]\npassword = "CANARY"\n')
    command = [sys.executable, "-m", "oncehook", "serve", "--config", str(config), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "oncehook access jane" in done.stderr
    assert done.stderr.count("\n") == 1 and "CANARY" not in done.stderr


def test_session_is_valid_in_every_process_of_a_run(tmp_path: Path, postgres: Postgres) -> None:
    config = write_config(tmp_path, postgres.database(migrated=True))
    with process(config, "--processes", "2") as service:
        url = printed_url(service)
        with httpx.Client(follow_redirects=True, timeout=20, verify=False) as browser:
            assert browser.get(url).status_code == 200
            cookies = dict(browser.cookies)
        for _ in range(20):  # each on a new connection, which either process may accept
            page = httpx.get(f"http://127.0.0.1:{service.port}/events", cookies=cookies, timeout=20, verify=False)
            assert page.status_code == 200
        assert service.end() == 0


def test_open_stream_does_not_delay_the_stop_of_the_service(config: Path) -> None:
    with process(config) as service:
        url = printed_url(service)
        with httpx.Client(follow_redirects=True, timeout=20, verify=False) as browser:
            browser.get(url)
            with browser.stream("GET", f"http://127.0.0.1:{service.port}/live") as stream:
                pieces = stream.iter_bytes()
                assert b": connected" in next(pieces)
                started = time.monotonic()
                service.process.send_signal(signal.SIGTERM)
                assert b"event: changed" not in b"".join(pieces)
        assert service.wait() == 0 and time.monotonic() - started < 15


def test_invalid_host_header_never_causes_a_server_error(config: Path) -> None:
    with process(config) as service:
        for host in ("[", "a b", "", "é", "x" * 3000):
            for path in ("/", "/events", "/api/events", "/sign-in"):
                with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
                    connection.sendall(request(path, {"Host": host, "Connection": "close"}, None, method="GET"))
                    status = connection.recv(4096).split(b" ")[1]
                assert status in (b"200", b"303", b"400", b"401"), (host, path)


def test_library_and_commands_do_not_import_the_dashboard() -> None:
    script = "import sys; {}; print([name for name in ('starlette', 'jinja2', 'anyio') if name in sys.modules])"
    for code in (
        "import oncehook",
        "import oncehook.web.app",
        "import oncehook.cli.serve",
        "import oncehook.cli.access",
    ):
        done = subprocess.run([sys.executable, "-c", script.format(code)], capture_output=True, text=True, timeout=30)
        assert done.stdout.strip() == "[]", code
