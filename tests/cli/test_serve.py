"""`oncehook serve` and `oncehook send` as processes: starting, refusing to start, serving, and stopping."""

import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import ONCEHOOK, Process, parse_head, process, request, write_config
from tests.support.servers import Postgres, children_of, free_port


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [ONCEHOOK, *arguments], capture_output=True, text=True, timeout=30, cwd=cwd, env={**os.environ, **environment}
    )


def post(port: int, body: bytes) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{port}/webhooks/stripe", content=body, headers=stripe_headers(body), timeout=10, verify=False
    )


@pytest.fixture
def config(tmp_path: Path, database: str) -> Path:
    return write_config(tmp_path, database)


@pytest.fixture
def service(config: Path) -> Iterator[Process]:
    with process(config) as running:
        yield running


def test_help_takes_less_than_a_second() -> None:
    """Of the processor: how long one waits also depends on what else the machine does."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 1.0


# -- serving and stopping -------------------------------------------------------------------------------------------


def test_it_says_where_to_deliver_and_takes_what_is_delivered_there(service: Process, rows: Rows) -> None:
    assert service.process.stdout is not None
    source = service.process.stdout.readline()
    assert f"http://127.0.0.1:{service.port}/webhooks/stripe" in source and "Stripe" in source
    assert post(service.port, stripe_body("evt_1")).status_code == 202
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_ends_it_with_exit_code_0(service: Process, rows: Rows, number: int) -> None:
    for _ in range(3):
        post(service.port, stripe_body("evt_1"))
    assert service.end(number) == 0
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(2,)]  # it wrote what still waited


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_delivery_under_way_at_sigterm_is_finished_and_acked(service: Process, rows: Rows) -> None:
    body = stripe_body("evt_1")
    whole = request("/webhooks/stripe", stripe_headers(body), body)
    assert post(service.port, stripe_body("before")).status_code == 202
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(whole[:-10])
        assert post(service.port, stripe_body("between")).status_code == 202  # so the first half has been read
        service.process.send_signal(signal.SIGTERM)
        until_refused(service.port)
        connection.sendall(whole[-10:])
        status, _ = parse_head(connection.recv(4096).partition(b"\r\n\r\n")[0])
    assert status == 202
    assert service.wait() == 0
    assert ("evt_1",) in rows("SELECT event_id FROM webhook_receipts")


def until_refused(port: int) -> None:
    """Until nobody listens there any more."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    raise AssertionError("it still listens")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_lines_are_json_on_standard_error(config: Path) -> None:
    with process(config, log=subprocess.PIPE) as service:
        post(service.port, stripe_body("evt_1"))
        assert service.process.stderr is not None
        service.process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in service.process.stderr]
    events = [line["event"] for line in lines]
    assert [event for event in events if event != "unhandled"] == ["started", "accepted", "stopped"]


def test_an_inbox_of_ones_own_is_served_with_what_the_file_adds(tmp_path: Path, rows: Rows, database: str) -> None:
    config = write_config(tmp_path, database)
    (tmp_path / "hooks.py").write_text(
        "from oncehook import Inbox\ninbox = Inbox()\ninbox.source('own', provider='stripe', secrets=['whsec_test'])\n"
    )
    command = [ONCEHOOK, "serve", "hooks:inbox", "--config", config, "--port", str(port := free_port())]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as it:
        assert it.stdout is not None and str(port) in it.stdout.readline()
        body = stripe_body("evt_1")
        for source in ("own", "stripe"):
            url = f"http://127.0.0.1:{port}/webhooks/{source}"
            answer = httpx.post(url, content=body, headers=stripe_headers(body), timeout=10, verify=False)
            assert answer.status_code == 202
        it.send_signal(signal.SIGTERM)
        assert it.wait(20) == 0
    assert rows("SELECT source FROM webhook_receipts ORDER BY 1") == [("own",), ("stripe",)]


# -- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_several_processes_share_the_address_replace_the_dead_and_stop_together(config: Path, rows: Rows) -> None:
    with process(config, "--processes", "2") as service:
        parent = service.process.pid
        bodies = [stripe_body(f"evt_{n}") for n in range(30)]
        assert {post(service.port, body).status_code for body in bodies} == {202}
        first, second = children_of(parent)
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while len(set(children_of(parent)) - {first}) < 2:
            assert time.monotonic() < deadline, "the dead one was not replaced"
            time.sleep(0.05)
        assert {post(service.port, body).status_code for body in bodies} == {200}
        children = children_of(parent)
        assert service.end() == 0
        assert second in children and not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(30,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_several_processes_on_sqlite_are_refused(config: Path) -> None:
    done = run("serve", "--config", str(config), "--port", "0", "--processes", "2")
    assert done.returncode == 2 and "--processes needs PostgreSQL" in done.stderr


# -- refusing to start ----------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, str]] = {
    "not TOML": ("database = ", "is not valid TOML"),
    "an unknown key": ('databse = "sqlite:///x.db"', "did you mean database?"),
    "an unknown key of a source": ('[sources.stripe]\nsecret = ["x"]', "did you mean sources.stripe.secrets?"),
    "a secret that is not set": ('[sources.stripe]\nsecrets = ["env:NOT_SET_ANYWHERE"]', "set NOT_SET_ANYWHERE"),
    "an empty secret": ('[sources.stripe]\nsecrets = [""]', "sources.stripe.secrets[0] is empty"),
    "no secret": ("[sources.stripe]\n", "sources.stripe.secrets is empty"),
    "an unknown provider": ('[sources.strip]\nsecrets = ["x"]', "did you mean stripe?"),
    "an unknown database": ('database = "mysql://CANARY@x/y"', "mysql"),
    "a size that is none": ('max_body = "large"', "max_body"),
    "a bad source name": ('[sources."Stripe Live"]\nsecrets = ["x"]', "Stripe Live"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG.keys())
def test_a_configuration_that_is_wrong_is_one_sentence_and_exit_code_2(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "oncehook.toml").write_text(text)
    done = run("serve", "--port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.startswith("oncehook: ") and done.stderr.count("\n") == 1
    assert done.stdout == "" and "CANARY" not in done.stderr


def test_a_file_or_module_that_is_not_there_is_told(tmp_path: Path) -> None:
    for arguments, told in (
        (["--config", "nowhere.toml"], "nowhere.toml does not exist"),
        (["nothing:inbox"], "there is no module nothing"),
        (["nothing"], "is not of the form module:inbox"),
        (["json:loads"], "not an Inbox"),
    ):
        done = run("serve", *arguments, "--port", "0", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and told in done.stderr


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_port_that_is_taken_is_told_with_exit_code_2(config: Path, service: Process) -> None:
    done = run("serve", "--config", str(config), "--port", str(service.port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{service.port}" in done.stderr and "--port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_database_that_cannot_be_reached_is_told_with_exit_code_1(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"postgresql://user:CANARY@127.0.0.1:{free_port()}/x")
    done = run("serve", "--config", str(config), "--port", "0")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr and "CANARY" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.without_schema
def test_without_its_schema_it_does_not_start_and_says_what_to_run(tmp_path: Path, database: str) -> None:
    config = write_config(tmp_path, database, 'migrate = "never"')
    done = run("serve", "--config", str(config), "--port", "0")
    assert done.returncode == 2 and "oncehook migrate" in done.stderr
    assert run("migrate", "--config", str(config)).returncode == 0
    with process(config) as service:
        assert post(service.port, stripe_body()).status_code == 202


def test_the_environment_wins_over_the_file(tmp_path: Path, postgres: Postgres) -> None:
    config = write_config(tmp_path, "mysql://nowhere/x")
    database = postgres.database()
    assert run("migrate", "--config", str(config), ONCEHOOK_DATABASE=database).returncode == 0
    assert postgres.sql("SELECT count(*) FROM webhook_receipts", database.rpartition("/")[2]) == "0"


# -- send -----------------------------------------------------------------------------------------------------------


def send(config: Path, service: Process, *arguments: str) -> "subprocess.CompletedProcess[str]":
    to = f"http://127.0.0.1:{service.port}/webhooks/stripe"
    return run("send", "stripe", "invoice.paid", "--config", str(config), "--to", to, *arguments)


def test_send_signs_and_posts_events_that_are_accepted(config: Path, service: Process, rows: Rows) -> None:
    one = send(config, service)
    assert one.returncode == 0 and one.stdout.startswith("202  ") and '"accepted"' in one.stdout
    duplicated = send(config, service, "--duplicate", "2", "--json")
    answers: list[dict[str, Any]] = [json.loads(line) for line in duplicated.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == [202, 200, 200]
    many = send(config, service, "--count", "60", "--duplicate", "1", "--concurrency", "8")
    assert many.returncode == 0
    assert [line.split()[:3] for line in many.stdout.splitlines()[:2]] == [
        ["60", "200", "duplicate"],
        ["60", "202", "accepted"],
    ]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE type = 'invoice.paid'") == [(62,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_send_that_is_refused_or_not_heard_is_exit_code_1(config: Path, service: Process, rows: Rows) -> None:
    wrong = send(config, service, "--secret", "whsec_wrong")
    assert wrong.returncode == 1 and wrong.stdout.startswith("401  ")
    nobody = f"http://127.0.0.1:{free_port()}/webhooks/stripe"
    unheard = run("send", "stripe", "invoice.paid", "--config", str(config), "--to", nobody)
    assert unheard.returncode == 1 and unheard.stdout.startswith("no response")
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


def test_send_without_a_secret_or_an_address_is_exit_code_2(tmp_path: Path) -> None:
    for arguments, told in (
        (["stripe", "invoice.paid"], "no secret to sign with"),
        (["nobody", "x"], "nobody is not known"),
        (["stripe", "invoice.paid", "--secret", "x", "--to", "ftp://x"], "is not an http or https URL"),
        (["stripe", "invoice.paid", "--secret", "env:NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    ):
        done = run("send", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and told in done.stderr, done.stderr


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_reader_that_leaves_early_hears_nothing_of_it(config: Path, service: Process) -> None:
    send(config, service, "--count", "100")
    command = f"{ONCEHOOK} events --json --config {config} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["source"] == "stripe"
