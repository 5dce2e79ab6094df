"""`oncehook email` and `oncehook forget --address`: their output, their effects and their exit codes."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import post
from tests.support.command_line import Run
from tests.support.email_inbox import START, wait_until_settled
from tests.support.email_payloads import JANE, postmark_bounce, sendgrid
from tests.support.events import Rows
from tests.support.serve import ONCEHOOK, write_config
from tests.support.servers import run_sql
from tests.support.waiting import eventually

MESSAGE = "QxOyqPXBTJCrtqDtuwUqBA"


@pytest.fixture
def filled(database: str, in_folder: Path) -> None:
    """A configured inbox in which a message was opened and then bounced, and another bounced at Postmark."""
    write_config(in_folder, database, "[sources.sendgrid]", 'verify = "none"', "email = true")

    async def fill() -> None:
        inbox = Inbox(database, worker=True)
        inbox.source("sendgrid", verify="none", email=True)
        inbox.source("postmark", verify="none", email=True)
        async with inbox.lifespan():
            events = [
                sendgrid("delivered"),
                sendgrid("open", START + 1),
                sendgrid("bounce", START + 2, reason="550 no"),
            ]
            await post(inbox, "sendgrid", json.dumps(events).encode(), {"Content-Type": "application/json"})
            body = json.dumps(postmark_bounce("SoftBounce")).encode()
            await post(inbox, "postmark", body, {"Content-Type": "application/json"})
            await wait_until_settled(database)

    asyncio.run(fill())


def test_status_shows_a_message_for_each_recipient(run: Run, filled: None) -> None:
    shown = run("email", "status", MESSAGE)
    assert shown.code == 0
    assert "bounced (hard)" in shown.out and "550 no" in shown.out and "2025-11-15T09:46:42" in shown.out
    long = "QxOyqPXBTJCrtqDtuwUqBA.recvd-6b4c7d9f8-xk2vl-1-64F0A1B2-1E.0"
    (status,) = run("email", "status", long, "--json").lines
    assert (status["message_id"], status["recipient"], status["status"], status["bounce"]) == (
        MESSAGE,
        JANE,
        "bounced",
        "hard",
    )
    assert status["event"] is not None and "event_key" not in status
    assert status["opened_at"] == "2025-11-15T09:46:41.000000Z"
    _, *events = run("email", "status", MESSAGE, "--events", "--json").lines
    assert [event["type"] for event in events] == ["delivered", "opened", "bounced"]
    assert events[0]["tags"] == ["receipt", "shop"] and events[0]["metadata"] == {"order": "1042"}
    unknown = run("email", "status", "nope")
    assert (unknown.code, unknown.error) == (1, "there is no email event of the message nope\n")


def test_suppressed_lists_addresses_and_checks_one(run: Run, filled: None) -> None:
    assert "hard_bounce" in run("email", "suppressed").out
    (row,) = run("email", "suppressed", "jane@EXAMPLE.com", "--json").lines
    assert (row["address"], row["reason"], row["event"]) == (JANE, "hard_bounce", f"bounce-{START + 2}")
    free = run("email", "suppressed", "joe@example.com")
    assert (free.code, free.error) == (1, "joe@example.com is not suppressed\n")
    for odd in ("unknown", "joe@example.com, jane@example.com"):  # several addresses are not one address
        wrong = run("email", "suppressed", odd)
        assert wrong.code == 2 and "is not an email address" in wrong.error
    run("forget", "--address", JANE, "--yes")
    (kept,) = run("email", "suppressed", JANE, "--json").lines
    assert run("email", "suppressed", kept["address"], "--json").lines == [kept]


def test_an_address_is_suppressed_and_allowed_manually_with_a_note(run: Run, filled: None, rows: Rows) -> None:
    assert run("email", "allow", JANE, "--note", "fixed").out == "jane@example.com is allowed\n"
    assert run("email", "suppressed").code == 1
    assert run("email", "suppress", "Joe@Example.org", "--note", "by phone").out == "joe@example.org is suppressed\n"
    (row,) = run("email", "suppressed", "--json").lines
    assert (row["address"], row["reason"], row["note"]) == ("joe@example.org", "manual", "by phone")
    assert [action for (action,) in rows("SELECT action FROM webhook_audit ORDER BY id")] == ["allow", "suppress"]
    wrong = run("email", "suppress", "unknown")
    assert wrong.code == 2 and "'unknown' is not an email address" in wrong.error


def test_suppressions_are_exported_and_imported_as_csv(run: Run, filled: None, in_folder: Path, rows: Rows) -> None:
    exported = run("email", "export")
    assert exported.out.splitlines()[0] == "address,reason,since,source,event,note"
    assert exported.out.splitlines()[1].startswith("jane@example.com,hard_bounce,2025-11-15T09:46:42.000000Z,sendgrid,")
    file = in_folder / "more.csv"
    file.write_text(
        '\ufeffEmail,Reason,Created,Note\nann@example.com,complaint,2024-01-02T03:04:05Z,"a, b"\n'
        "\njane@example.com,,,\n"
    )
    assert run("email", "import", str(file)).out == "imported 2 addresses\n"
    found = {row["address"]: row for row in run("email", "suppressed", "--json").lines}
    assert (found["ann@example.com"]["reason"], found["ann@example.com"]["since"][:10]) == ("complaint", "2024-01-02")
    assert found["ann@example.com"]["note"] == "a, b"
    assert found[JANE]["reason"] == "hard_bounce"  # it was there first
    run("email", "allow", "ann@example.com")
    again = run("email", "import", str(file))
    assert again.out == "imported 2 addresses\n" and "1 of them stay allowed" in again.error
    before = rows("SELECT count(*) FROM webhook_suppressions")
    for content, sentence in (
        ("name\nx\n", "the first line must name the columns"),
        ("address\nok@example.com\nunknown\n", "line 3: 'unknown' is not an email address"),
        ("address,since\nok@example.com,soon\n", "line 2: 'soon' is not a time"),
    ):
        file.write_text(content)
        failed = run("email", "import", str(file))
        assert failed.code == 1 and sentence in failed.error
    for odd in ("address,note\nok@example.com,é\n".encode("latin-1"), "address\nok@example.com\n".encode("utf-16")):
        file.write_bytes(odd)
        failed = run("email", "import", str(file))
        assert failed.code == 1 and "the file is not UTF-8" in failed.error
    assert rows("SELECT count(*) FROM webhook_suppressions") == before


def test_an_export_is_imported_unchanged_and_holds_no_formula(run: Run, filled: None, in_folder: Path) -> None:
    run("email", "suppress", "ann@example.com", "--note", "=HYPERLINK(A1)")
    run("email", "suppress", "bob@example.com", "--note", "'-1")
    exported = run("email", "export").out
    assert ",'=HYPERLINK(A1)\n" in exported and ",''-1\n" in exported
    before = run("email", "suppressed", "--json").lines
    file = in_folder / "same.csv"
    file.write_text(exported)
    run("email", "import", str(file))
    after = run("email", "suppressed", "--json").lines
    who = {"actor": None}
    assert [row | who for row in after] == [row | who for row in before]
    assert after[-1]["event"] is not None  # it is still an event that says so


def test_import_list_and_export_of_several_pages_have_every_address_once(
    run: Run, filled: None, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.cli.email.PAGE", 2)
    file = in_folder / "suppressions.csv"
    added = [f"a{number}@example.com" for number in range(5)]
    file.write_text("\n".join(["address", *added, ""]))
    assert run("email", "import", str(file)).out == "imported 5 addresses\n"
    assert [row["address"] for row in run("email", "suppressed", "--json").lines] == [*added, JANE]
    head, *rows = run("email", "export").out.splitlines()
    assert head.startswith("address,") and [row.partition(",")[0] for row in rows] == [*added, JANE]


def test_events_are_counted_by_any_dimension(run: Run, filled: None) -> None:
    assert run("email", "counts", "--by", "type", "--json").lines == [
        {"type": "bounced", "bounce": "hard", "events": 1},
        {"type": "bounced", "bounce": "soft", "events": 1},
        {"type": "delivered", "bounce": None, "events": 1},
        {"type": "opened", "bounce": None, "events": 1},
    ]
    assert "receipt" in run("email", "counts", "--by", "tag,source").out
    assert run("email", "counts", "--since", "2025-12-01").code == 1
    wrong = run("email", "counts", "--by", "color")
    assert wrong.code == 2 and "'color' is not one of day, source, type, tag, domain" in wrong.error


def test_verify_finds_a_difference_that_rebuild_fixes(run: Run, filled: None, database: str) -> None:
    assert run("email", "verify").out == "compared 2 messages and 1 address: 0 differ\n"
    back = " RETURNING 1" if database.startswith("postgresql") else ""
    run_sql(
        database,
        "UPDATE webhook_email_status SET status = 'delivered' WHERE status = 'bounced' AND bounce = 'hard'" + back,
    )
    wrong = run("email", "verify")
    assert wrong.code == 1
    assert f"{MESSAGE} to {JANE}: stored delivered, but the events give bounced" in wrong.out
    assert run("email", "rebuild", "--json").lines == [{"messages": 2, "addresses": 1, "differences": 1}]
    assert run("email", "verify").code == 0


def test_forgetting_an_address_erases_its_email_rows_and_keeps_it_suppressed(
    run: Run, filled: None, database: str
) -> None:
    done = run("forget", "--address", "JANE@example.com", "--yes")
    assert done.code == 0 and "a suppression stays in force, stored as a hash" in done.out
    tables = [
        "webhook_payloads",
        "webhook_email_events",
        "webhook_email_status",
        "webhook_suppressions",
        "webhook_audit",
    ]
    assert "jane" not in str([run_sql(database, f"SELECT * FROM {table}") for table in tables]).lower()
    (row,) = run("email", "suppressed", JANE, "--json").lines
    assert row["address"].startswith("sha256:") and row["reason"] == "hard_bounce"
    assert run("email", "verify").code == 0
    again = run("forget", "--address", JANE, "--yes")
    assert (again.code, again.error) == (1, "no payload matches\n")


def test_a_rehearsal_runs_the_projection_and_changes_nothing(
    run: Run, filled: None, database: str, in_folder: Path, rows: Rows
) -> None:
    (in_folder / "hooks.py").write_text("from oncehook import Inbox\n\ninbox = Inbox()\n")
    for table in ("webhook_email_events", "webhook_email_status", "webhook_suppressions"):
        run_sql(database, f"DELETE FROM {table} WHERE true" + (" RETURNING 1" if database.startswith("p") else ""))
    shown = run("replay", "--source", "sendgrid", "--rehearse", "--app", "hooks:inbox", "--json", "--yes")
    assert shown.code == 0 and {line["handler"] for line in shown.lines} == {"oncehook.email.projection.project_only"}
    assert rows("SELECT count(*) FROM webhook_email_events") == [(0,)]


def test_a_worker_without_an_app_runs_the_projection_if_every_source_has_email(
    database: str, in_folder: Path, rows: Rows
) -> None:
    source = '[sources.postmark]\nverify = "none"\nemail = true\n'
    (in_folder / "oncehook.toml").write_text(f'database = "{database}"\npoll = "50ms"\n{source}')

    async def accept() -> None:
        inbox = Inbox(database, worker=False)
        inbox.source("postmark", verify="none", email=True)
        async with inbox.lifespan():
            await post(inbox, "postmark", json.dumps(postmark_bounce()).encode(), {"Content-Type": "application/json"})

    asyncio.run(accept())
    running = subprocess.Popen([str(ONCEHOOK), "worker"], cwd=in_folder, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(eventually(lambda: rows("SELECT reason FROM webhook_suppressions") == [("hard_bounce",)]))
        running.terminate()
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.wait()
