"""The dashboard of `oncehook serve`: its address, its token, several processes, and none at all."""

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


def printed(service: Process) -> str:
    """The address with the token."""
    assert service.process.stdout is not None
    for line in service.process.stdout:
        found = re.search(r"(http://\S+/\?token=\S+)", line)
        if found:
            return found[1]
    raise AssertionError("it printed none")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, f"sqlite:///{tmp_path / 'inbox.db'}")


def test_it_prints_an_address_that_lets_in_and_another_at_each_start(config: Path) -> None:
    addresses = []
    for _ in range(2):
        with process(config) as service:
            address = printed(service)
            addresses.append(address.rpartition("=")[2])
            with httpx.Client(follow_redirects=True, timeout=20, verify=False) as browser:
                page = browser.get(address)
                assert page.status_code == 200 and "No events yet" in page.text
                assert str(page.url) == f"http://127.0.0.1:{service.port}/"
    assert addresses[0] != addresses[1]


def test_without_it_there_is_only_a_plain_page(config: Path) -> None:
    with process(config, "--no-dashboard") as service:
        base = f"http://127.0.0.1:{service.port}"
        assert "This inbox is running" in httpx.get(base, timeout=20, verify=False).text
        for path in ("/events", "/api/events", "/sign-in", "/static/style.css"):
            assert httpx.get(base + path, timeout=20, verify=False).status_code == 404
        assert service.end() == 0


def test_a_password_in_place_of_its_hash_is_one_sentence_and_exit_code_2(config: Path) -> None:
    with config.open("a") as file:
        file.write('[dashboard.users.jane]\npassword = "CANARY"\n')
    command = [sys.executable, "-m", "oncehook", "serve", "--config", str(config), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "oncehook access jane" in done.stderr
    assert done.stderr.count("\n") == 1 and "CANARY" not in done.stderr


def test_a_session_holds_in_every_process_of_a_run(tmp_path: Path, postgres: Postgres) -> None:
    config = write_config(tmp_path, postgres.database(migrated=True))
    with process(config, "--processes", "2") as service:
        address = printed(service)
        with httpx.Client(follow_redirects=True, timeout=20, verify=False) as browser:
            assert browser.get(address).status_code == 200
            cookies = dict(browser.cookies)
        for _ in range(20):  # each on a connection of its own, which either process may take
            page = httpx.get(f"http://127.0.0.1:{service.port}/events", cookies=cookies, timeout=20, verify=False)
            assert page.status_code == 200
        assert service.end() == 0


def test_an_open_stream_does_not_hold_up_the_end(config: Path) -> None:
    with process(config) as service:
        address = printed(service)
        with httpx.Client(follow_redirects=True, timeout=20, verify=False) as browser:
            browser.get(address)
            with browser.stream("GET", f"http://127.0.0.1:{service.port}/live") as stream:
                pieces = stream.iter_bytes()
                assert b": connected" in next(pieces)
                started = time.monotonic()
                service.process.send_signal(signal.SIGTERM)
                assert b"event: changed" not in b"".join(pieces)
        assert service.wait() == 0 and time.monotonic() - started < 15


def test_a_host_header_that_is_none_is_no_error_of_ours(config: Path) -> None:
    with process(config) as service:
        for host in ("[", "a b", "", "é", "x" * 3000):
            for path in ("/", "/events", "/api/events", "/sign-in"):
                with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
                    connection.sendall(request(path, {"Host": host, "Connection": "close"}, None, method="GET"))
                    status = connection.recv(4096).split(b" ")[1]
                assert status in (b"200", b"303", b"400", b"401"), (host, path)


def test_the_door_the_library_and_the_help_do_not_pay_for_it() -> None:
    look = "import sys; {}; print([name for name in ('starlette', 'jinja2', 'anyio') if name in sys.modules])"
    for code in (
        "import oncehook",
        "import oncehook.web.app",
        "import oncehook.cli.serve",
        "import oncehook.cli.access",
    ):
        done = subprocess.run([sys.executable, "-c", look.format(code)], capture_output=True, text=True, timeout=30)
        assert done.stdout.strip() == "[]", code
