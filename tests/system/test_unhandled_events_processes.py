"""Events without a handler, with real processes: a rolling deploy, the commands and the dashboard."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from oncehook.web.auth import hash_token
from tests.support.command_line import Run
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import Process, process, write_config
from tests.support.waiting import wait_until
from tests.support.work import unhandled_events

STATES = "SELECT status, count(*) FROM webhook_receipts GROUP BY status ORDER BY status"


RELEASE = """
from oncehook import Inbox

inbox = Inbox()


async def record(event, tx):
    insert = "INSERT INTO ledger (event_id, type, release) VALUES ({placeholders})"
    await tx.execute(insert, event.id, event.type, "{name}")

for pattern in {patterns}:
    inbox.on("stripe", pattern)(record)
"""


CHARGES = """
from oncehook import Inbox

inbox = Inbox()


@inbox.on("stripe", "charge.*")
async def charge(event): ...
"""


WAITING = (
    "INSERT INTO webhook_receipts "
    "(source, provider, event_id, type, received_at, status, fingerprint, unhandled_at) VALUES "
    "('stripe', 'stripe', 'evt_1', 'invoice.paid', strftime('%Y-%m-%dT%H:%M:%f000Z'), 'received', x'00', "
    "strftime('%Y-%m-%dT%H:%M:%f000Z'))"
)
"""A receipt that was set aside just now, in SQLite."""


@pytest.fixture
def config(in_folder: Path, database: str, rows: Rows) -> Path:
    rows("CREATE TABLE ledger (event_id TEXT NOT NULL, type TEXT, release TEXT)")
    return write_config(in_folder, database)


@pytest.fixture
def release(config: Path, database: str) -> Callable[..., str]:
    """Writes an app whose handlers record the release that handled each event."""

    def write(name: str, *patterns: str) -> str:
        placeholders = "$1, $2, $3" if database.startswith("postgresql") else "?, ?, ?"
        app = RELEASE.format(name=name, patterns=repr(patterns), placeholders=placeholders)
        (config.parent / f"{name}.py").write_text(app)
        return f"{name}:inbox"

    return write


@contextmanager
def steady_deliveries(port: int, *types: str) -> Iterator[list[str]]:
    """Deliver events of these types from a thread until the block ends. Yields the accepted event ids."""
    accepted: list[str] = []
    stop = False

    def run() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as client:
            while not stop:
                for type_ in types:
                    body = stripe_body(f"{type_}_{len(accepted)}", type_)
                    answer = client.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
                    assert answer.status_code == 202, answer.text
                    accepted.append(type_)

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(run)
        try:
            yield accepted
        finally:
            stop = True
            task.result(60)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_rolling_deploy_that_adds_a_handler_loses_no_event(
    config: Path, release: Callable[..., str], rows: Rows
) -> None:
    by_new = "SELECT count(*) FROM ledger WHERE release = 'new' AND type = 'invoice.paid'"
    with process(config, app=release("old", "charge.*"), cwd=config.parent) as old:
        with steady_deliveries(old.port, "charge.paid", "invoice.paid") as accepted:
            wait_until(lambda: len(accepted) > 20)
            new = Process(config, app=release("new", "charge.*", "invoice.*"), cwd=config.parent)
            try:
                wait_until(lambda: rows(by_new)[0][0] > 20)
                while_both_run = len(accepted)
                wait_until(lambda: len(accepted) > while_both_run + 20)
            except BaseException:
                new.kill()
                raise
        assert old.end() == 0
    try:
        wait_until(lambda: rows(STATES) == [("processed", len(accepted))])
        assert rows("SELECT count(*), count(DISTINCT event_id) FROM ledger") == [(len(accepted), len(accepted))]
        assert rows("SELECT DISTINCT release FROM ledger WHERE type = 'invoice.paid'") == [("new",)]
        assert rows("SELECT count(*) FROM webhook_receipts WHERE attempts <> 1") == [(0,)]
    finally:
        assert new.end() == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_commands_and_the_dashboard_show_unhandled_events(
    config: Path, release: Callable[..., str], rows: Rows, run: Run
) -> None:
    token = hash_token("a-token-of-the-test")
    config.write_text(config.read_text() + f'[dashboard.tokens.ops]\ntoken = "{token}"\nscopes = ["read"]\n')
    with process(config, app=release("shop", "charge.*"), cwd=config.parent) as service:
        base = f"http://127.0.0.1:{service.port}"
        for event_id, type_ in (("evt_1", "invoice.paid"), ("evt_2", "charge.paid")):
            body = stripe_body(event_id, type_)
            answer = httpx.post(f"{base}/webhooks/stripe", content=body, headers=stripe_headers(body), verify=False)
            assert answer.status_code == 202
        wait_until(lambda: unhandled_events(rows) == ["evt_1"])
        wait_until(lambda: rows("SELECT count(*) FROM ledger") == [(1,)])
        (event,) = run("events", "--unhandled", "--json").lines
        assert (event["event_id"], event["status"]) == ("evt_1", "received")
        assert "no running process has had a handler since" in run("show", "evt_1").out
        assert "stripe: 1 event has no handler in any running process" in run("stats").out
        assert run("stats", "--json").lines[0]["unhandled"] == 1
        doctor = run("doctor", "--app", "shop:inbox")
        assert doctor.code == 1
        assert "source stripe: 1 event has had no handler in any running process since" in doctor.out
        assert_dashboard_shows_unhandled(base, event["receipt"])


def assert_dashboard_shows_unhandled(base: str, receipt: int) -> None:
    with httpx.Client(base_url=base, verify=False, timeout=30) as client:
        wait_until(lambda: 'oncehook_unhandled{consumer="main",source="stripe"} 1.0' in client.get("/metrics").text)
        client.headers["authorization"] = "Bearer a-token-of-the-test"
        events = client.get("/api/events?status=unhandled").json()["events"]
        assert [event["event_id"] for event in events] == ["evt_1"]
        assert client.get("/api/overview").json()["unhandled"] == 1
        assert [source["unhandled"] for source in client.get("/api/sources").json()["sources"]] == [1]
        assert "without a handler" in client.get("/").text
        assert "No handler" in client.get(f"/events/{receipt}").text
        listed = client.get("/events?status=unhandled").text
        assert "evt_1" in listed and "evt_2" not in listed
        sources = client.get("/sources").text
        assert "1 event without a handler" in sources and "charge.*" in sources


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_serve_and_the_doctor_name_sources_without_a_handler_in_this_process(config: Path, run: Run) -> None:
    config.write_text(config.read_text() + '[sources.github]\nsecrets = ["x"]\nforward = "http://127.0.0.1:9/"\n')
    with process(config) as service:
        assert service.process.stdout is not None
        lines = {name: service.process.stdout.readline() for name in ("github", "stripe")}
    assert "no handler in this process" in lines["stripe"]
    assert "no handler" not in lines["github"]
    doctor = run("doctor").out
    assert "source stripe: this app has no handler, forward or email projection for it" in doctor
    assert "source github: this app" not in doctor


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_doctor_notes_when_unhandled_events_will_be_ignored(config: Path, rows: Rows, run: Run) -> None:
    config.write_text(config.read_text() + 'unhandled = "ignore"\n')
    (config.parent / "charges.py").write_text(CHARGES)
    rows(WAITING)
    doctor = run("doctor", "--app", "charges:inbox")
    assert "note   source stripe: 1 event has no handler in any running process; ignored after 5m" in doctor.out
    assert doctor.code == 0, doctor.out
