"""Every framework behind its real server, over HTTP: answers, races, an outage, a kill, a replay and a stop."""

import asyncio
import socket
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from oncehook import Inbox
from oncehook.receiver.ack import ERRORS
from tests.integrations.frameworks.server import Server
from tests.integrations.frameworks.table import FRAMEWORKS, Framework
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import request
from tests.support.servers import run_sql, sqlite_file
from tests.support.waiting import wait_until

LEDGER = "SELECT note FROM ledger ORDER BY note"
ROWS = [row if row.is_sample else pytest.param(row, marks=pytest.mark.rest) for row in FRAMEWORKS]
HANDLED = "SELECT status, attempts, replays FROM webhook_receipts WHERE event_id = '{}'"


def deliver(server: Server, event_id: str, type_: str = "invoice.paid") -> httpx.Response:
    body = stripe_body(event_id, type_)
    return server.client.post("/webhooks/stripe", content=body, headers=stripe_headers(body))


@pytest.mark.rest
@pytest.mark.parametrize("framework", ROWS, ids=lambda framework: framework.name)
def test_framework_answers_as_every_other_and_handles_each_event_once(framework: Framework, tmp_path: Path) -> None:
    database = sqlite_file(tmp_path / "inbox.db")
    run_sql(database, "CREATE TABLE ledger (note TEXT)")
    with Server(framework, database, tmp_path) as server:
        assert_answers(server, database)
        assert_duplicates_at_the_same_time_are_one_event(server, database)
        assert_outage_gets_503(server, database)
        if framework.interrupts:
            assert_late_body_gets_408(server, database)
        assert_replay_runs_the_handler_again(database)
        assert deliver(server, "evt_slow", "slow.one").status_code == 202
        wait_until((tmp_path / "started-evt_slow").exists, "the handler runs")
        server.kill()
    (tmp_path / "gate").touch()
    with Server(framework, database, tmp_path) as server:
        status, attempts, _ = wait_until_processed(database, "evt_slow")
        assert (status, attempts) == ("processed", 2), "the killed attempt and the one after the restart"
        assert run_sql(database, LEDGER).count(("evt_slow",)) == 1
        (tmp_path / "gate").unlink()
        assert_stop_lets_a_handler_end(server, database)


def assert_answers(server: Server, database: str) -> None:
    body = stripe_body("evt_1")
    signed = stripe_headers(body)
    first, second = deliver(server, "evt_1"), deliver(server, "evt_1")
    ((receipt,),) = run_sql(database, "SELECT id FROM webhook_receipts")
    assert (first.status_code, first.json()) == (202, {"status": "accepted", "event_id": "evt_1", "receipt": receipt})
    assert (second.status_code, second.json()["status"]) == (200, "duplicate")
    assert first.headers["content-type"] == "application/json"
    assert server.client.post("/webhooks/stripe/?a=b", content=body, headers=signed).status_code == 200
    for code, response in {
        "bad_signature": server.client.post("/webhooks/stripe", content=b"{}", headers=signed),
        "unknown_source": server.client.post("/webhooks/unknown", content=body, headers=signed),
        "method_not_allowed": server.client.get("/webhooks/stripe"),
        "too_large": server.client.post("/webhooks/stripe", content=b"x" * 20_001, headers=signed),
        "unsupported_media_type": server.client.post(
            "/webhooks/stripe", content=body, headers={**signed, "Content-Type": "multipart/form-data"}
        ),
    }.items():
        status, message = ERRORS[code]
        assert (response.status_code, response.json()) == (status, {"error": {"code": code, "message": message}})
        assert response.headers.get("allow") == ("POST" if status == 405 else None)
    wait_until_processed(database, "evt_1")
    assert run_sql(database, LEDGER) == [("evt_1",)]


def assert_duplicates_at_the_same_time_are_one_event(server: Server, database: str) -> None:
    with ThreadPoolExecutor(8) as senders:
        statuses = [answer.status_code for answer in senders.map(lambda _: deliver(server, "evt_race"), range(16))]
    assert sorted(statuses) == [200] * 15 + [202]
    wait_until_processed(database, "evt_race")
    assert run_sql(database, LEDGER).count(("evt_race",)) == 1


def assert_outage_gets_503(server: Server, database: str) -> None:
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")  # as a backup that takes too long
        response = deliver(server, "evt_outage")
        other.execute("ROLLBACK")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert deliver(server, "evt_outage").status_code in (200, 202), "the commit may have begun before the 503"
    wait_until_processed(database, "evt_outage")
    assert run_sql(database, LEDGER).count(("evt_outage",)) == 1


def assert_late_body_gets_408(server: Server, database: str) -> None:
    body = stripe_body("evt_late")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request("/webhooks/stripe", stripe_headers(body), body)[:-1])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 408 " in answer.splitlines()[0] and b'"timeout"' in answer
    assert run_sql(database, HANDLED.format("evt_late")) == []


def assert_replay_runs_the_handler_again(database: str) -> None:
    assert asyncio.run(Inbox(database, worker=False).replay("evt_1")).replayed.total() == 1
    wait_until(lambda: run_sql(database, LEDGER).count(("evt_1",)) == 2, "the handler ran again")


def assert_stop_lets_a_handler_end(server: Server, database: str) -> None:
    assert deliver(server, "evt_last", "slow.two").status_code == 202
    wait_until((server.folder / "started-evt_last").exists, "the handler runs")
    with ThreadPoolExecutor(1) as ending:
        stop = ending.submit(server.end)
        (server.folder / "gate").touch()
        stop.result()
    assert server.logged().splitlines().count("stopped") == 1, server.logged()
    assert run_sql(database, HANDLED.format("evt_last")) == [("processed", 1, 0)]


def wait_until_processed(database: str, event_id: str) -> tuple[str, int, int]:
    query = HANDLED.format(event_id)
    wait_until(lambda: run_sql(database, query)[0][0] == "processed", f"{event_id} is processed", within=60)
    ((status, attempts, replays),) = run_sql(database, query)
    return status, attempts, replays
