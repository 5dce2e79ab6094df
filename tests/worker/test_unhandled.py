"""Events without a handler: no process finishes them while another has one, and a new handler takes them up."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from oncehook.web.auth import hash_token
from tests.cli.test_serve import run
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import Process, process, write_config
from tests.support.waiting import wait_until

RELEASE = """
from oncehook import Inbox

inbox = Inbox()
INSERT = "INSERT INTO ledger (event_id, type, release) VALUES ({marks})"


async def record(event, tx):
    await tx.execute(INSERT, event.id, event.type, "{name}")

for pattern in {patterns}:
    inbox.on("stripe", pattern)(record)
"""
STATES = "SELECT status, count(*) FROM webhook_receipts GROUP BY status ORDER BY status"


def deliver(port: int, *events: tuple[str, str], source: str = "stripe") -> None:
    """Deliver (id, type) pairs, many at once."""

    address = f"http://127.0.0.1:{port}/webhooks/{source}"
    with httpx.Client(timeout=30, verify=False) as client, ThreadPoolExecutor(8) as pool:

        def post(event: tuple[str, str]) -> int:
            body = stripe_body(*event)
            return client.post(address, content=body, headers=stripe_headers(body)).status_code

        assert set(pool.map(post, events)) <= {200, 202}


@pytest.fixture
def config(tmp_path: Path, database: str) -> Path:
    return write_config(tmp_path, database)


@pytest.fixture
def release(config: Path, database: str) -> Callable[..., str]:
    """Writes an app with handlers for some patterns, which record who handled what."""

    def write(name: str, *patterns: str) -> str:
        marks = "$1, $2, $3" if database.startswith("postgresql") else "?, ?, ?"
        app = RELEASE.format(name=name, patterns=repr(patterns), marks=marks)
        (config.parent / f"{name}.py").write_text(app)
        return f"{name}:inbox"

    return write


@pytest.fixture
def served(config: Path, rows: Rows) -> Iterator[Callable[..., Process]]:
    """Starts `oncehook serve`, with an app or without; the table that apps write to is there from the first one on."""
    running: list[Process] = []

    def start(app: str | None = None, *options: str) -> Process:
        running.append(Process(config, *options, app=app, cwd=config.parent))
        if len(running) == 1:
            rows("CREATE TABLE IF NOT EXISTS ledger (event_id TEXT NOT NULL, type TEXT, release TEXT)")
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.kill()


def waiting_apart(rows: Rows) -> int:
    return int(rows("SELECT count(*) FROM webhook_receipts WHERE unhandled_at IS NOT NULL")[0][0])


def forget_dead_processes(rows: Rows) -> None:
    """As if a minute had passed since the processes that are gone were last seen."""
    rows("UPDATE webhook_workers SET seen_at = '2026-01-01T00:00:00.000000Z'")


@contextmanager
def steady(port: int, type_: str) -> Iterator[list[str]]:
    """Delivers events of a type all the while, from a thread; the ids that were accepted."""
    accepted: list[str] = []
    stop = False

    def run() -> None:
        number = 0
        while not stop:
            number += 1
            deliver(port, (f"{type_}_{number}", type_))
            accepted.append(f"{type_}_{number}")

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(run)
        try:
            yield accepted
        finally:
            stop = True
            task.result(60)


# -- processes side by side -----------------------------------------------------------------------------------------


def test_a_process_without_an_app_leaves_the_events_to_the_one_that_has_it(
    served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    real = served(release("shop", "invoice.*"))
    bystander = served()
    events = [(f"evt_{number}", "invoice.paid") for number in range(400)]
    deliver(real.port, *events[:200])
    deliver(bystander.port, *events[200:])
    wait_until(lambda: rows(STATES) == [("processed", 400)])
    assert rows("SELECT count(*), count(DISTINCT event_id) FROM ledger") == [(400, 400)]
    assert rows("SELECT DISTINCT outcome, attempts FROM webhook_receipts") == [("processed", 1)]


def test_an_event_without_a_handler_waits_and_is_handled_when_one_appears(
    served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    served_first = served()
    deliver(served_first.port, ("evt_1", "invoice.paid"))
    wait_until(lambda: waiting_apart(rows) == 1)
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("received", 0)]
    served(release("shop", "invoice.*"))
    wait_until(lambda: rows("SELECT event_id FROM ledger") == [("evt_1",)])
    wait_until(lambda: rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 1)])
    assert waiting_apart(rows) == 0


def test_a_rolling_deploy_that_adds_a_handler_loses_nothing(
    served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    old = served(release("old", "charge.*"))
    with steady(old.port, "charge.paid") as charges, steady(old.port, "invoice.paid") as invoices:
        wait_until(lambda: len(invoices) > 20)
        new = served(release("new", "charge.*", "invoice.*"))
        wait_until(
            lambda: rows("SELECT count(*) FROM ledger WHERE release = 'new' AND type = 'invoice.paid'")[0][0] > 20
        )
        so_far = len(invoices)
        wait_until(lambda: len(invoices) > so_far + 20)  # old and new beside each other
    assert old.end() == 0
    sent = len(charges) + len(invoices)
    wait_until(lambda: rows(STATES) == [("processed", sent)])
    assert rows("SELECT count(*), count(DISTINCT event_id) FROM ledger") == [(sent, sent)]
    assert rows("SELECT DISTINCT release FROM ledger WHERE type = 'invoice.paid'") == [("new",)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE attempts <> 1") == [(0,)]
    assert new.end() == 0


def test_an_event_whose_only_handler_died_waits_and_is_no_case_for_an_alarm_at_once(
    served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    bystander = served()
    worker = served(release("shop", "invoice.*"))
    deliver(bystander.port, ("evt_1", "invoice.paid"))
    wait_until(lambda: rows(STATES) == [("processed", 1)])
    worker.kill()
    deliver(bystander.port, ("evt_2", "invoice.paid"), ("evt_3", "customer.created"))
    wait_until(lambda: waiting_apart(rows) == 1)  # the look that set this one apart saw the other too
    assert rows("SELECT type FROM webhook_receipts WHERE unhandled_at IS NOT NULL") == [("customer.created",)]
    forget_dead_processes(rows)
    wait_until(lambda: waiting_apart(rows) == 2)
    served("shop:inbox")
    wait_until(lambda: rows("SELECT event_id FROM ledger ORDER BY event_id") == [("evt_1",), ("evt_2",)])


def test_a_receipt_whose_worker_died_is_left_to_a_process_with_its_handler(
    served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    """A process that does not know the handler does not know its policy either: it makes no dead letter of it."""
    bystander = served()
    worker = served(release("shop", "invoice.*"))
    deliver(bystander.port, ("evt_1", "invoice.paid"))
    wait_until(lambda: rows(STATES) == [("processed", 1)])
    worker.kill()
    rows(
        "UPDATE webhook_receipts SET status = 'processing', attempts = 50, lease = 9, "
        "lease_until = '2026-01-01T00:00:00.000000Z', processed_at = NULL"
    )
    forget_dead_processes(rows)
    wait_until(lambda: rows("SELECT status FROM webhook_receipts") == [("retrying",)])


def test_a_process_finds_what_nobody_handles_behind_many_that_wait_for_the_same_moment(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    """They fill whole windows, and are due at one time: the look goes on behind them all the same."""
    service = served(release("shop", "invoice.*"))
    assert run("pause", "stripe", "--config", str(config)).returncode == 0
    deliver(service.port, ("evt_1", "invoice.paid"), ("evt_2", "customer.created"))
    wait_until(lambda: waiting_apart(rows) == 1)
    rows("UPDATE webhook_receipts SET unhandled_at = NULL, received_at = '2026-02-01T00:00:00.000000Z'")
    copied = "source, provider, 'copy_' || n, 'invoice.paid', '2026-01-01T00:00:00.000000Z', status, fingerprint"
    rows(
        f"INSERT INTO webhook_receipts (id, source, provider, event_id, type, received_at, status, fingerprint) "
        f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000) "
        f"SELECT 1000000 + n, {copied} FROM numbers, webhook_receipts WHERE event_id = 'evt_1'"
    )
    wait_until(lambda: waiting_apart(rows) == 1)
    assert rows("SELECT event_id FROM webhook_receipts WHERE unhandled_at IS NOT NULL") == [("evt_2",)]


# -- where it is shown ----------------------------------------------------------------------------------------------


def test_events_without_a_handler_are_shown_wherever_one_looks(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    token = hash_token("a-token-of-the-test")
    config.write_text(config.read_text() + f'[dashboard.tokens.ops]\ntoken = "{token}"\nscopes = ["read"]\n')
    service = served(release("shop", "charge.*"))
    deliver(service.port, ("evt_1", "invoice.paid"), ("evt_2", "charge.paid"))
    wait_until(lambda: waiting_apart(rows) == 1)
    wait_until(lambda: rows("SELECT count(*) FROM ledger") == [(1,)])

    def oncehook(*arguments: str) -> tuple[int, str]:
        ran = run(*arguments, "--config", str(config), cwd=config.parent)
        return ran.returncode, ran.stdout

    code, out = oncehook("events", "--unhandled", "--json")
    (event,) = [json.loads(line) for line in out.splitlines()]
    assert (code, event["event_id"], event["status"]) == (0, "evt_1", "received")
    assert "no running process has had a handler since" in oncehook("show", "evt_1")[1]
    assert "stripe: 1 event has no handler in any running process" in oncehook("stats")[1]
    assert json.loads(oncehook("stats", "--json")[1].splitlines()[0])["unhandled"] == 1
    code, out = oncehook("doctor", "--app", "shop:inbox")
    assert code == 1 and "source stripe: 1 event has had no handler in any running process since" in out
    base = f"http://127.0.0.1:{service.port}"
    wait_until(lambda: 'oncehook_unhandled{source="stripe"} 1.0' in httpx.get(f"{base}/metrics", verify=False).text)
    with httpx.Client(base_url=base, verify=False, timeout=30) as client:
        client.headers["authorization"] = "Bearer a-token-of-the-test"
        found = client.get("/api/events?status=unhandled").json()["events"]
        assert [one["event_id"] for one in found] == ["evt_1"]
        assert client.get("/api/overview").json()["unhandled"] == 1
        assert [one["unhandled"] for one in client.get("/api/sources").json()["sources"]] == [1]
        assert "without a handler" in client.get("/").text
        assert "No handler" in client.get(f"/events/{event['receipt']}").text
        listed = client.get("/events?status=unhandled").text
        assert "evt_1" in listed and "evt_2" not in listed
        sources = client.get("/sources").text
        assert "1 event without a handler" in sources and "charge.*" in sources


def test_serve_without_an_app_says_what_it_takes_no_work_of(config: Path) -> None:
    config.write_text(config.read_text() + '[sources.github]\nsecrets = ["x"]\nforward = "http://127.0.0.1:9/"\n')
    with process(config) as service:
        assert service.process.stdout is not None
        lines = {name: service.process.stdout.readline() for name in ("github", "stripe")}
    assert "no handler in this process" in lines["stripe"]
    assert "no handler" not in lines["github"]
    ran = run("doctor", "--config", str(config))
    assert "source stripe: this app has no handler, forward or email projection for it" in ran.stdout
    assert "source github: this app" not in ran.stdout


# -- what a source may say ------------------------------------------------------------------------------------------


def test_a_source_that_ignores_what_nobody_handles_ignores_it_after_a_while_and_a_replay_is_handled(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    config.write_text(config.read_text() + 'unhandled = "ignore"\n')
    first = served(release("charges", "charge.*"))
    deliver(first.port, ("evt_1", "invoice.paid"))
    wait_until(lambda: waiting_apart(rows) == 1)
    assert rows(STATES) == [("received", 1)]
    doctor = run("doctor", "--config", str(config), "--app", "charges:inbox", cwd=config.parent)
    assert "note   source stripe: 1 event has no handler in any running process; ignored after 5m" in doctor.stdout
    assert doctor.returncode == 0, doctor.stdout
    rows("UPDATE webhook_receipts SET unhandled_at = '2026-01-01T00:00:00.000000Z'")
    rows("UPDATE webhook_workers SET registered_at = '2026-01-01T00:00:00.000000Z'")
    wait_until(lambda: rows(STATES) == [("ignored", 1)])
    reason = 'no process has a handler for invoice.paid, and sources.stripe.unhandled is "ignore"'
    assert rows("SELECT last_error, attempts, unhandled_at FROM webhook_receipts") == [(reason, 0, None)]
    served(release("shop", "invoice.*"))
    assert run("replay", "1", "--config", str(config), cwd=config.parent).returncode == 0
    wait_until(lambda: rows("SELECT event_id FROM ledger") == [("evt_1",)])


def test_nothing_is_ignored_within_a_minute_of_a_start(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    config.write_text(config.read_text() + 'unhandled = "ignore"\n')
    first = served(release("charges", "charge.*"))
    deliver(first.port, ("evt_1", "invoice.paid"))
    wait_until(lambda: waiting_apart(rows) == 1)
    rows("UPDATE webhook_receipts SET unhandled_at = '2026-01-01T00:00:00.000000Z'")
    seen = "SELECT seen_at FROM webhook_workers"
    before = rows(seen)
    wait_until(lambda: rows(seen) != before)  # ten seconds, in which it looked many times
    assert rows(STATES) == [("received", 1)]


def test_an_unknown_word_for_unhandled_is_an_error_at_start(config: Path) -> None:
    config.write_text(config.read_text() + 'unhandled = "drop"\n')
    ran = run("serve", "--config", str(config), "--port", "0")
    assert ran.returncode == 2
    assert "sources.stripe.unhandled is 'drop': expected one of wait, ignore" in ran.stderr


# -- forwards, projections, inline, serial --------------------------------------------------------------------------


def test_a_process_whose_projection_takes_every_event_leaves_those_with_a_handler_elsewhere(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    config.write_text(config.read_text() + '[sources.postmark]\nverify = "none"\nemail = true\n')
    bystander = served()
    app = config.parent / "mail.py"
    app.write_text(
        (config.parent / f"{release('shop', 'none').partition(':')[0]}.py")
        .read_text()
        .replace('"stripe", pattern', '"postmark", "Bounce"')
    )
    with process(config, app="mail:inbox", cwd=config.parent):
        wait_until(
            lambda: bool(rows("SELECT 1 FROM webhook_live_handlers WHERE source = 'postmark' AND pattern = 'Bounce'"))
        )
        for number in range(40):
            kind = "Bounce" if number % 2 else "Delivery"
            facts = {"RecordType": kind, "MessageID": f"m{number}", "ID": number + 1, "Recipient": "a@b.co"}
            body = json.dumps({**facts, "Email": "a@b.co"})
            answer = httpx.post(
                f"http://127.0.0.1:{bystander.port}/webhooks/postmark", content=body, timeout=30, verify=False
            )
            assert answer.status_code == 202, answer.text
        wait_until(lambda: rows(STATES) == [("processed", 40)])
    assert rows("SELECT count(*) FROM ledger") == [(20,)]


def test_an_inline_event_without_a_handler_here_is_refused_so_that_its_sender_comes_again(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    config.write_text(config.read_text() + 'mode = "inline"\n')
    bystander, real = served(), served(release("shop", "invoice.*"))
    body = stripe_body("evt_1", "invoice.paid")

    def post(port: int) -> httpx.Response:
        address = f"http://127.0.0.1:{port}/webhooks/stripe"
        return httpx.post(address, content=body, headers=stripe_headers(body), timeout=30, verify=False)

    refused = post(bystander.port)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
    assert post(real.port).json()["status"] == "processed"
    assert rows("SELECT event_id FROM ledger") == [("evt_1",)]


def test_an_inline_event_that_nobody_handles_is_ignored_where_the_source_says_so(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    config.write_text(config.read_text() + 'mode = "inline"\nunhandled = "ignore"\n')
    bystander, _ = served(), served(release("shop", "invoice.*"))
    wait_until(lambda: bool(rows("SELECT 1 FROM webhook_live_handlers")))

    def status(event_id: str, type_: str) -> tuple[int, str | None]:
        body = stripe_body(event_id, type_)
        address = f"http://127.0.0.1:{bystander.port}/webhooks/stripe"
        answer = httpx.post(address, content=body, headers=stripe_headers(body), timeout=30, verify=False)
        return answer.status_code, answer.json().get("status")

    wait_until(lambda: status("evt_1", "customer.created")[0] == 200)
    assert rows(STATES) == [("ignored", 1)]
    wait_until(lambda: status("evt_2", "invoice.paid") == (503, None))  # another process handles it
    assert rows("SELECT event_id FROM webhook_receipts WHERE event_id = 'evt_2' AND status <> 'ignored'") == []


def test_an_event_that_nobody_handles_does_not_block_its_serial_key(
    config: Path, served: Callable[..., Process], release: Callable[..., str], rows: Rows
) -> None:
    config.write_text(config.read_text() + 'serial_by = "object_id"\n')
    service = served(release("shop", "invoice.*"))
    deliver(service.port, ("evt_1", "customer.created"))
    deliver(service.port, ("evt_2", "invoice.paid"))
    wait_until(lambda: rows("SELECT event_id FROM ledger") == [("evt_2",)])
    assert rows("SELECT event_id FROM webhook_receipts WHERE unhandled_at IS NOT NULL") == [("evt_1",)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_event_of_a_forward_is_taken_by_any_process(
    config: Path, served: Callable[..., Process], rows: Rows
) -> None:
    config.write_text(config.read_text() + 'forward = "http://127.0.0.1:9/"\nmax_attempts = 1\n')
    service = served()
    deliver(service.port, ("evt_1", "invoice.paid"))
    wait_until(lambda: rows(STATES) == [("failed", 1)])
    assert waiting_apart(rows) == 0
