"""`oncehook doctor` and `oncehook secrets`: findings, exit codes, and no secret in the output."""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import post
from tests.support.command_line import Run
from tests.support.events import stripe_body, stripe_headers
from tests.support.rejections import BODY
from tests.support.serve import write_config
from tests.support.servers import free_port
from tests.support.work import claim_and_settle


async def reject_one_delivery(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await post(inbox, "stripe", BODY + b"\n", stripe_headers(BODY))


def test_doctor_signature_explains_a_rejected_delivery(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    write_config(in_folder, database)
    claim_and_settle(make_inbox)
    assert run("doctor", "signature").code == 1
    asyncio.run(reject_one_delivery(make_inbox))
    output = run("doctor", "signature", "stripe")
    assert output.code == 0 and "newline" in output.out and "--data-binary" in output.out and "whsec" not in output.out
    (case,) = run("doctor", "signature", "--json").lines
    assert (case["source"], case["findings"][0]["cause"]) == ("stripe", "newline")
    (again,) = run("doctor", "signature", "--secret", "env:NOT_SET_ANYWHERE", "--json").error.splitlines()
    assert "--secret is empty: set NOT_SET_ANYWHERE" in again
    unknown = run("doctor", "signature", "unknown")
    assert unknown.code == 2 and "the sources are: stripe" in unknown.error


def test_doctor_checks_configuration_schema_and_rejections(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    config = write_config(in_folder, database)
    asyncio.run(reject_one_delivery(make_inbox))
    output = run("doctor")
    assert output.code == 0 and "schema is up to date" in output.out and "oncehook doctor signature" in output.out
    config.write_text(config.read_text().replace('["whsec_test"]', "[]"))
    wrong = run("doctor", "--json")
    assert wrong.code == 1 and "sources.stripe.secrets is empty" in wrong.lines[-1]["message"]


async def deliver_signed(make_inbox: Callable[..., Inbox], deliveries: int, *secrets: str) -> str:
    """Deliver events that are signed with the first of the secrets, and return its fingerprint."""
    inbox = make_inbox()
    mark = inbox.source("stripe", secrets=secrets).fingerprints[0]
    async with inbox.lifespan():
        for n in range(deliveries):
            body = stripe_body(f"evt_{n}")
            assert (await post(inbox, "stripe", body, stripe_headers(body, secrets[0]))).status == 202
    return mark


async def use_and_replace_secret(make_inbox: Callable[..., Inbox], deliveries: int) -> str:
    """Verify deliveries with a secret, replace it, reject one delivery, and return the old fingerprint."""
    mark = await deliver_signed(make_inbox, deliveries, "whsec_before")
    after = make_inbox()
    after.source("stripe", secrets=["whsec_test"])
    async with after.lifespan():
        assert (await post(after, "stripe", BODY, stripe_headers(BODY, "whsec_before"))).status == 401
    return mark


def test_doctor_reports_a_secret_that_was_removed_too_early(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    write_config(in_folder, database)
    mark = asyncio.run(use_and_replace_secret(make_inbox, 3))
    output = run("doctor")
    assert output.code == 1
    assert f"The secret {mark}, which verified 3 deliveries until then, is no longer configured" in output.out
    assert "Add it to `secrets` again" in output.out and "whsec" not in output.out
    (case,) = run("doctor", "signature", "--json").lines
    assert [finding["cause"] for finding in case["findings"]] == ["removed secret"]
    configured, removed = run("secrets", "--json").lines
    assert (configured["verified"], configured["secret"]) == (0, 0)
    assert (removed["mark"], removed["verified"], removed["secret"]) == (mark, 3, None)
    assert "no delivery was verified since" in removed["advice"]
    assert "removed" in run("secrets").out


def test_doctor_accepts_a_completed_rotation(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    async def use_the_new_one() -> None:
        await use_and_replace_secret(make_inbox, 1)
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            assert (await post(inbox, "stripe", BODY, stripe_headers(BODY))).status == 202

    write_config(in_folder, database)
    asyncio.run(use_the_new_one())
    assert run("doctor").code == 0
    (case,) = run("doctor", "signature", "--json").lines
    assert case["findings"][0]["cause"] == "unknown"
    assert run("secrets", "--json").lines[1]["advice"] == "no longer configured"


def test_doctor_only_notes_a_replaced_secret_until_a_delivery_is_rejected(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    async def use_the_old_one() -> None:
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_before"])
        async with inbox.lifespan():
            body = stripe_body()
            assert (await post(inbox, "stripe", body, stripe_headers(body, "whsec_before"))).status == 202

    write_config(in_folder, database)
    asyncio.run(use_the_old_one())
    output = run("doctor", "--json")
    (note,) = [line for line in output.lines if "no longer configured" in line["message"]]
    assert (
        output.code == 0
        and note["level"] == "note"
        and "The new secret has not verified a delivery yet" in note["message"]
    )


def test_new_database_is_private_and_doctor_notes_one_that_others_can_read(run: Run, in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text('database = "sqlite:///inbox.db"\n')
    before = os.umask(0o022)
    try:
        assert run("migrate").code == 0
        store = sqlite3.connect("inbox.db")
        try:
            store.execute("BEGIN IMMEDIATE")  # so that -wal and -shm are there
            store.execute("ROLLBACK")
            modes = {file.name: file.stat().st_mode & 0o777 for file in in_folder.glob("inbox.db*")}
        finally:
            store.close()
    finally:
        os.umask(before)
    assert modes == {"inbox.db": 0o600, "inbox.db-wal": 0o600, "inbox.db-shm": 0o600}
    assert "all users" not in run("doctor").out
    (in_folder / "inbox.db").chmod(0o644)
    output = run("doctor", "--json")
    (line,) = [line for line in output.lines if "all users" in line["message"]]
    assert output.code == 0 and line["level"] == "note" and "chmod o= inbox.db*" in line["message"]


def test_doctor_reports_a_missing_database(run: Run, in_folder: Path) -> None:
    write_config(in_folder, "sqlite:///nowhere.db")
    output = run("doctor")
    assert output.code == 1 and "there is no database at" in output.out


def test_secrets_command_says_which_secret_can_be_removed(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    config = write_config(in_folder, database)
    config.write_text(config.read_text().replace('["whsec_test"]', '["whsec_new", "whsec_test"]'))
    asyncio.run(deliver_signed(make_inbox, 1, "whsec_new", "whsec_test"))
    first, second = run("secrets", "--json").lines
    assert (first["secret"], first["verified"], first["advice"]) == (0, 1, "in use")
    assert second["verified"] == 0 and second["last_used_at"] is None and "safe to remove" in second["advice"]
    shown = run("secrets")
    assert "secrets[1]" in shown.out and "whsec" not in shown.out


def test_doctor_says_whether_redis_answers_and_shows_no_password(run: Run, in_folder: Path, database: str) -> None:
    write_config(in_folder, database, f'redis = "redis://:hunter2@127.0.0.1:{free_port()}/0"')
    down = run("doctor")
    assert "redis: it does not answer (ConnectionError)" in down.out and "hunter2" not in down.out + down.error
    write_config(in_folder, database, 'redis = "http://example.com"')
    wrong = run("doctor")
    assert wrong.code == 1 and "redis is not a Redis URL" in wrong.out


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_doctor_reports_a_read_replica_that_is_not_used(run: Run, in_folder: Path, database: str) -> None:
    write_config(in_folder, database, f'read_database = "{database}"')
    primary = run("doctor")
    assert (
        primary.code == 1 and "read_database: it is not a standby any more. The dashboard reads the pri" in primary.out
    )
    write_config(in_folder, database, f'read_database = "postgresql://127.0.0.1:{free_port()}/gone"')
    down = run("doctor")
    assert down.code == 1 and "read_database: PostgreSQL: ConnectionRefusedError. The dashboard reads" in down.out
