"""`oncehook serve` as a process: starting, failing to start, serving and stopping."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import run_process
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import (
    ONCEHOOK,
    Process,
    parse_head,
    post_stripe,
    process,
    request,
    wait_until_refused,
    write_config,
)
from tests.support.servers import Postgres, free_port, run_sql
from tests.support.waiting import wait_until


@pytest.fixture
def service(config: Path) -> Iterator[Process]:
    with process(config) as running:
        yield running


@pytest.mark.sampled(1)
def test_serve_prints_the_address_of_each_source_and_accepts_deliveries_there(service: Process, rows: Rows) -> None:
    assert service.process.stdout is not None
    source = service.process.stdout.readline()
    assert f"http://127.0.0.1:{service.port}/webhooks/stripe" in source and "Stripe" in source
    assert post_stripe(service.port, stripe_body("evt_1")).status_code == 202
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_on_a_signal_with_exit_code_0_and_writes_buffered_rows(
    service: Process, rows: Rows, number: int
) -> None:
    for _ in range(3):
        post_stripe(service.port, stripe_body("evt_1"))
    assert service.end(number) == 0
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(2,)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_delivery_in_progress_at_sigterm_is_acked(service: Process, rows: Rows) -> None:
    body = stripe_body("evt_1")
    whole = request("/webhooks/stripe", stripe_headers(body), body)
    assert post_stripe(service.port, stripe_body("before")).status_code == 202
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(whole[:-10])
        assert post_stripe(service.port, stripe_body("between")).status_code == 202  # by now the first half is read
        service.process.send_signal(signal.SIGTERM)
        wait_until_refused(service.port)
        connection.sendall(whole[-10:])
        status, _ = parse_head(connection.recv(4096).partition(b"\r\n\r\n")[0])
    assert status == 202
    assert service.wait() == 0
    assert ("evt_1",) in rows("SELECT event_id FROM webhook_receipts")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("options", [[], ["--no-fast-paths"]])
def test_a_draining_process_is_not_ready_but_accepts_deliveries(
    tmp_path: Path, database: str, rows: Rows, options: list[str]
) -> None:
    """A load balancer sees 503 and stops sending. Connections that stay open close after their next response."""
    config = write_config(tmp_path, database, 'drain_delay = "1m"')
    with (
        process(config, *options) as service,
        httpx.Client(verify=False, base_url=f"http://127.0.0.1:{service.port}") as client,
    ):
        assert client.get("/readyz").status_code == 200
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code == 503, "the process is not ready")
        body = stripe_body("evt_1")
        response = client.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
        assert (response.status_code, response.headers["connection"]) == (202, "close")
        assert client.get("/healthz").status_code == 200
        assert service.end(signal.SIGINT) == 0, "a second signal must end the delay"
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_log_lines_on_standard_error_are_json(config: Path) -> None:
    with process(config, log=subprocess.PIPE) as service:
        post_stripe(service.port, stripe_body("evt_1"))
        assert service.process.stderr is not None
        service.process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in service.process.stderr]
    events = [line["event"] for line in lines]
    assert [event for event in events if event != "unhandled"] == ["started", "accepted", "stopped"]


@pytest.mark.sampled(1)
def test_an_app_is_served_with_the_sources_of_the_file(tmp_path: Path, rows: Rows, database: str) -> None:
    config = write_config(tmp_path, database)
    (tmp_path / "hooks.py").write_text(
        "from oncehook import Inbox\ninbox = Inbox()\ninbox.source('own', provider='stripe', secrets=['whsec_test'])\n"
    )
    command = [str(ONCEHOOK), "serve", "hooks:inbox", "--config", str(config), "--port", str(port := free_port())]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None and str(port) in running.stdout.readline()
        body = stripe_body("evt_1")
        for source in ("own", "stripe"):
            url = f"http://127.0.0.1:{port}/webhooks/{source}"
            response = httpx.post(url, content=body, headers=stripe_headers(body), timeout=10, verify=False)
            assert response.status_code == 202
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert rows("SELECT source FROM webhook_receipts ORDER BY 1") == [("own",), ("stripe",)]


def test_without_workers_the_events_wait(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'inbox.db'}"
    service = Process(write_config(tmp_path, database), "--no-worker", "--concurrency", "4")
    body = stripe_body("evt_1")
    address = f"http://127.0.0.1:{service.port}/webhooks/stripe"
    assert httpx.post(address, content=body, headers=stripe_headers(body), verify=False).status_code == 202
    assert service.end() == 0
    assert run_sql(database, "SELECT status, attempts FROM webhook_receipts") == [("received", 0)]


# -- failing to start ----------------------------------------------------------------------------------------------


INVALID: dict[str, tuple[str, str]] = {
    "not TOML": ("database = ", "is not valid TOML"),
    "an unknown key": ('databse = "sqlite:///x.db"', "did you mean database?"),
    "an unknown key of a source": ('[sources.stripe]\nsecret = ["x"]', "did you mean sources.stripe.secrets?"),
    "a secret that is not set": ('[sources.stripe]\nsecrets = ["env:NOT_SET_ANYWHERE"]', "set NOT_SET_ANYWHERE"),
    "an empty secret": ('[sources.stripe]\nsecrets = [""]', "sources.stripe.secrets[0] is empty"),
    "no secret": ("[sources.stripe]\n", "sources.stripe.secrets is empty"),
    "an unknown provider": ('[sources.strip]\nsecrets = ["x"]', "did you mean stripe?"),
    "an unknown database": ('database = "mysql://CANARY@x/y"', "mysql"),
    "an invalid size": ('max_body = "large"', "max_body"),
    "a bad source name": ('[sources."Stripe Live"]\nsecrets = ["x"]', "Stripe Live"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("text", "message"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_configuration_is_reported_in_one_line_with_exit_code_2(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "oncehook.toml").write_text(text)
    done = run_process("serve", "--port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("oncehook: ") and done.stderr.count("\n") == 1
    assert done.stdout == "" and "CANARY" not in done.stderr


def test_a_missing_file_or_module_is_reported_with_exit_code_2(tmp_path: Path) -> None:
    for arguments, message in (
        (["--config", "nowhere.toml"], "nowhere.toml does not exist"),
        (["nothing:inbox"], "there is no module nothing"),
        (["nothing"], "is not of the form module:inbox"),
        (["json:loads"], "not an Inbox"),
    ):
        done = run_process("serve", *arguments, "--port", "0", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and message in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_port_in_use_is_reported_with_exit_code_2(config: Path, service: Process) -> None:
    done = run_process("serve", "--config", str(config), "--port", str(service.port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{service.port}" in done.stderr and "--port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unreachable_database_is_reported_with_exit_code_1(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"postgresql://user:CANARY@127.0.0.1:{free_port()}/x")
    done = run_process("serve", "--config", str(config), "--port", "0")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr and "CANARY" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.without_schema
def test_serve_without_a_schema_does_not_start_and_names_the_command(tmp_path: Path, database: str) -> None:
    config = write_config(tmp_path, database, 'migrate = "never"')
    done = run_process("serve", "--config", str(config), "--port", "0")
    assert done.returncode == 2 and "oncehook migrate" in done.stderr
    assert run_process("migrate", "--config", str(config)).returncode == 0
    with process(config) as service:
        assert post_stripe(service.port, stripe_body()).status_code == 202


def test_the_environment_overrides_the_file(tmp_path: Path, postgres: Postgres) -> None:
    config = write_config(tmp_path, "mysql://nowhere/x")
    database = postgres.database()
    assert run_process("migrate", "--config", str(config), ONCEHOOK_DATABASE=database).returncode == 0
    assert postgres.sql("SELECT count(*) FROM webhook_receipts", database.rpartition("/")[2]) == "0"
