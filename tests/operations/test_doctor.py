"""The signature doctor: each usual cause is named, on a sample as the door keeps it, and nothing is ever accepted."""

import asyncio
import base64
import json
import os
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.model.rows import SecretUse, StoredRejection
from oncehook.model.timestamps import rfc3339
from oncehook.operations.doctor import REMEDIES, diagnose
from oncehook.operations.rotation import list_secrets
from oncehook.providers.definition import built_in, built_in_names
from oncehook.providers.sample import Sample, compose
from oncehook.providers.sign import sign
from oncehook.providers.source import Source
from oncehook.receiver.rejection_samples import make_sample
from oncehook.testing import post
from tests.cli.test_work import on_store
from tests.support.command_line import Run
from tests.support.events import github_headers, stripe_body, stripe_headers
from tests.support.serve import write_config

BODY = json.dumps(
    {"id": "evt_1", "type": "invoice.paid", "name": "Zoë", "url": "https://a/b"}, separators=(",", ":")
).encode()


def make_source(name: str = "stripe", **settings: Any) -> Source:
    inbox = Inbox("sqlite:///unused.db", worker=False)
    return inbox.source(name, **{"secrets": ["whsec_test"], **settings})


def refused(
    source: Source, body: bytes, headers: dict[str, str], *, at: float | None = None, query: str = ""
) -> StoredRejection:
    """A refused request as it is read back."""
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    delivery = Delivery(body, pairs, query=query.encode())
    assert source.verifier is not None
    with pytest.raises(Rejected) as caught:
        source.verifier.verify(delivery, time.time() if at is None else at)
    kept = make_sample(source, delivery, caught.value)
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    facts = {name: getattr(kept, name) for name in kept.__slots__}
    return StoredRejection(id=1, rejected_at=rfc3339(moment) or "", **facts)


def causes(rejection: StoredRejection, source: Source, *others: Source) -> list[str]:
    return [finding.cause for finding in diagnose(rejection, source, others)]


REWRITTEN = {
    "with blanks": lambda parsed: json.dumps(parsed).encode(),
    "indented": lambda parsed: json.dumps(parsed, indent=2).encode(),
    "sorted": lambda parsed: json.dumps(parsed, sort_keys=True).encode(),
}


@pytest.mark.parametrize("style", ["with blanks", "indented"])
def test_json_that_was_written_anew_is_recognised(style: str) -> None:
    source = make_source()
    arrived = REWRITTEN[style](json.loads(BODY))
    assert causes(refused(source, arrived, stripe_headers(BODY)), source) == ["rewritten JSON"]


def test_json_that_was_made_compact_on_the_way_is_recognised() -> None:
    source = make_source()
    sent = json.dumps(json.loads(BODY), indent=2, ensure_ascii=False).encode()
    assert causes(refused(source, BODY, stripe_headers(sent)), source) == ["rewritten JSON"]


@pytest.mark.parametrize(
    ("sent", "arrived"), [(BODY, BODY + b"\n"), (BODY + b"\n", BODY), (b'{\r\n"id":1}', b'{\n"id":1}')]
)
def test_a_line_end_that_came_or_went_is_recognised(sent: bytes, arrived: bytes) -> None:
    source = make_source()
    assert causes(refused(source, arrived, stripe_headers(sent)), source) == ["newline"]


@pytest.mark.parametrize("configured", [" whsec_test", "whsec_test\n", '"whsec_test"'])
def test_blanks_and_quotes_around_the_secret_are_recognised(configured: str) -> None:
    source = make_source("github", secrets=[configured])
    headers = github_headers(BODY, "d-1", secret="whsec_test")
    assert causes(refused(source, BODY, headers), source) == ["blank in the secret"]


def test_the_secret_of_another_source_is_recognised_and_named() -> None:
    test, live = make_source("github", secrets=["alpha"]), make_source("live", provider="github", secrets=["bravo"])
    rejection = refused(test, BODY, github_headers(BODY, "d-1", secret="bravo"))
    (finding,) = diagnose(rejection, test, [test, live])
    assert finding.cause == "other source" and "live" in finding.shows and "bravo" not in str(finding)


@pytest.mark.parametrize(("late", "said"), [(3600, "1h before it arrived"), (-900, "15m after it arrived")])
def test_a_clock_that_is_wrong_is_recognised(late: int, said: str) -> None:
    source = make_source()
    now = float(int(time.time()))  # the stamp is in whole seconds
    (finding,) = diagnose(refused(source, BODY, stripe_headers(BODY, now=now - late), at=now), source)
    assert finding.cause == "clock" and said in finding.shows


def test_a_definition_with_the_wrong_encoding_is_recognised() -> None:
    source = make_source("github", secrets=["github-secret"])
    headers = github_headers(BODY, "d-1")
    raw = bytes.fromhex(headers["X-Hub-Signature-256"].removeprefix("sha256="))
    headers["X-Hub-Signature-256"] = "sha256=" + base64.b64encode(raw).decode()
    assert causes(refused(source, BODY, headers), source) == ["encoding"]


def test_a_secret_that_is_read_in_another_form_is_recognised() -> None:
    source = make_source("standard-webhooks", secrets=["whsec_MDEyMzQ1Njc4OWFiY2RlZg=="])
    wrong = built_in("github")  # somebody signs with the text of the secret
    given = {"webhook-id": "msg_1", "webhook-timestamp": str(int(time.time()))}
    message = f"msg_1.{given['webhook-timestamp']}.".encode() + BODY
    signed, _ = sign(wrong, message, "whsec_MDEyMzQ1Njc4OWFiY2RlZg==", now=time.time())
    raw = bytes.fromhex(signed["X-Hub-Signature-256"].removeprefix("sha256="))
    given["webhook-signature"] = "v1," + base64.b64encode(raw).decode()
    assert causes(refused(source, BODY, given), source) == ["form of the secret"]


def test_two_mistakes_at_once_are_both_named() -> None:
    test, live = make_source("github", secrets=["alpha"]), make_source("live", provider="github", secrets=["bravo"])
    rejection = refused(test, BODY + b"\n", github_headers(BODY, "d-1", secret="bravo"))
    assert sorted(causes(rejection, test, live)) == ["newline", "other source"]


def test_a_request_without_a_signature_is_told_as_such() -> None:
    source = make_source()
    (finding,) = diagnose(refused(source, BODY, {}), source)
    assert finding.cause == "no signature" and "Stripe-Signature" in finding.shows


def test_a_wrong_password_is_told_as_such() -> None:
    source = make_source("postmark", secrets=["user:password"])
    assert causes(refused(source, BODY, {"Authorization": "Basic dXNlcjp4"}), source) == ["token"]


# -- providers that sign the address --------------------------------------------------------------------------------

HOOK = "https://a.example/hook"
ADDRESSES = {  # what is configured, what the provider signed, the query that arrived, what is said
    "the other scheme": (HOOK, "http://a.example/hook", "", "with http in place of https"),
    "https": ("http://a.example/hook", HOOK, "", "with https in place of http"),
    "a slash more": (HOOK, HOOK + "/", "", "with a slash at its end"),
    "a slash less": (HOOK + "/", HOOK, "", "without the slash at its end"),
    "a port less": ("https://a.example:8443/hook", HOOK, "", "without port 8443"),
    "a port more": (HOOK, "https://a.example:443/hook", "", "with port 443"),
    "a query that came on the way": (HOOK, HOOK, "via=proxy", "without the query"),
    "a query that was lost": (HOOK + "?token=t1", HOOK + "?token=t1", "", "with the query of `public_url`"),
    "two at once": (HOOK, "http://a.example/hook/", "", "with http in place of https and with a slash at its end"),
}
SIGN_THE_ADDRESS = [name for name in built_in_names() if any(one.covers_address for one in built_in(name).signatures)]


def signed_for(provider: str, address: str, secret: str = "a secret") -> Sample:
    definition = built_in(provider)
    type_ = definition.examples[0].type.replace("*", "paid")
    return compose(definition, type_, secret, now=time.time(), settings=SourceSettings(public_url=address))


@pytest.mark.parametrize("case", ADDRESSES)
def test_another_address_than_the_one_that_is_registered_is_recognised_and_described(case: str) -> None:
    configured, registered, query, said = ADDRESSES[case]
    source = make_source("square", secrets=["a secret"], public_url=configured)
    sent = signed_for("square", registered)
    (finding,) = diagnose(refused(source, sent.body, sent.headers, query=query), source)
    assert finding.cause == "address" and "`public_url`" in finding.remedy
    assert finding.shows == f"The signature is valid for the address {said}."


def test_whoever_signs_the_address_is_known() -> None:
    assert SIGN_THE_ADDRESS == ["hubspot", "mandrill", "square", "trello", "twilio"]


@pytest.mark.parametrize("provider", SIGN_THE_ADDRESS)
def test_the_address_is_tried_for_everyone_who_signs_it(provider: str) -> None:
    source = make_source(provider, secrets=["a secret"], public_url=HOOK)
    sent = signed_for(provider, "http://a.example/hook")
    assert causes(refused(source, sent.body, sent.headers), source) == ["address"]
    elsewhere = signed_for(provider, "https://b.example/hook")
    assert causes(refused(source, elsewhere.body, elsewhere.headers), source) == ["unknown"]


def test_a_wrong_address_and_another_mistake_are_both_named() -> None:
    source = make_source("square", secrets=["a secret"], public_url=HOOK)
    sent = signed_for("square", HOOK + "/")
    assert sorted(causes(refused(source, sent.body + b"\n", sent.headers), source)) == ["address", "newline"]


# -- what cannot be tried -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "settings", "header"),
    [
        ("paypal", {"secrets": [], "webhook_id": "WH-1"}, "PAYPAL-TRANSMISSION-SIG"),
        ("plaid", {"secrets": ["client1:secret1"]}, "Plaid-Verification"),
        ("docusign", {}, "X-DocuSign-Signature-*"),
    ],
)
def test_a_missing_header_is_named_whatever_the_form_of_the_signature(
    provider: str, settings: dict[str, Any], header: str
) -> None:
    source = make_source(provider, **settings)
    (finding,) = diagnose(refused(source, BODY, {}), source)
    assert finding.cause == "no signature" and header in finding.shows


def test_a_signature_in_a_numbered_header_is_no_missing_one() -> None:
    source = make_source("docusign")
    assert causes(refused(source, BODY, {"X-DocuSign-Signature-2": "AAAA"}), source) == ["unknown"]


def test_a_source_that_waits_for_its_secret_is_told_as_such() -> None:
    source = make_source("asana", secrets=[])
    assert causes(refused(source, BODY, {"X-Hook-Signature": "00"}), source) == ["no secret"]


def test_what_nobody_can_explain_is_said_to_be_so() -> None:
    source = make_source()
    assert causes(refused(source, BODY, stripe_headers(BODY, "whsec_of_nobody")), source) == ["unknown"]


def test_an_old_secret_or_one_of_another_environment_can_be_tried_and_is_not_shown() -> None:
    source = make_source()
    rejection = refused(source, BODY, stripe_headers(BODY, "whsec_before"))
    assert "--secret" in diagnose(rejection, source)[0].remedy
    (finding,) = diagnose(rejection, source, [], ["whsec_of_nobody", "whsec_before"])
    assert (finding.cause, "secret 2" in finding.shows) == ("other secret", True)
    assert "whsec_before" not in str(finding)
    with_newline = refused(source, BODY + b"\n", stripe_headers(BODY, "whsec_before"))
    found = {one.cause for one in diagnose(with_newline, source, [], ["whsec_before"])}
    assert found == {"other secret", "newline"}


def test_a_body_that_was_cut_is_not_tried() -> None:
    source = make_source()
    body = stripe_body(filler="x" * 100_000)
    assert causes(refused(source, body, stripe_headers(body, "whsec_of_nobody")), source) == ["cut"]


def test_a_sample_that_the_secrets_of_now_verify_is_told_as_such() -> None:
    source, old = make_source(), make_source(secrets=["whsec_before"])
    assert causes(refused(old, BODY, stripe_headers(BODY)), source) == ["would be accepted"]


def test_every_cause_has_a_remedy_and_no_finding_holds_a_secret() -> None:
    source = make_source(secrets=["whsec_very_secret"])
    rejection = refused(source, BODY, stripe_headers(BODY, "whsec_of_nobody"))
    assert "very_secret" not in str(diagnose(rejection, source)) and all(REMEDIES.values())


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 5000, b'{"a":NaN}', b"\x00"])
def test_whatever_was_kept_gets_a_finding(body: bytes) -> None:
    source = make_source()
    assert causes(refused(source, body, stripe_headers(b"other")), source)


# -- the commands ---------------------------------------------------------------------------------------------------


async def refuse_one(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await post(inbox, "stripe", BODY + b"\n", stripe_headers(BODY))


def test_doctor_signature_says_what_is_wrong_with_what_was_refused(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    write_config(in_folder, database)
    on_store(make_inbox)
    assert run("doctor", "signature").code == 1
    asyncio.run(refuse_one(make_inbox))
    told = run("doctor", "signature", "stripe")
    assert told.code == 0 and "newline" in told.out and "--data-binary" in told.out and "whsec" not in told.out
    (case,) = run("doctor", "signature", "--json").lines
    assert (case["source"], case["findings"][0]["cause"]) == ("stripe", "newline")
    (again,) = run("doctor", "signature", "--secret", "env:NOT_SET_ANYWHERE", "--json").error.splitlines()
    assert "--secret is empty: set NOT_SET_ANYWHERE" in again
    nobody = run("doctor", "signature", "nobody")
    assert nobody.code == 2 and "the sources are: stripe" in nobody.error


def test_doctor_looks_the_whole_over(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    config = write_config(in_folder, database)
    asyncio.run(refuse_one(make_inbox))
    told = run("doctor")
    assert told.code == 0 and "schema is up to date" in told.out and "oncehook doctor signature" in told.out
    config.write_text(config.read_text().replace('["whsec_test"]', "[]"))
    wrong = run("doctor", "--json")
    assert wrong.code == 1 and "sources.stripe.secrets is empty" in wrong.lines[-1]["message"]


async def use_and_replace(make_inbox: Callable[..., Inbox], deliveries: int) -> str:
    """Deliveries that verify, a restart with another secret, and one that does not verify any more; the old mark."""
    before, after = make_inbox(), make_inbox()
    mark = before.source("stripe", secrets=["whsec_before"]).fingerprints[0]
    after.source("stripe", secrets=["whsec_test"])
    async with before.lifespan():
        for n in range(deliveries):
            body = stripe_body(f"evt_{n}")
            assert (await post(before, "stripe", body, stripe_headers(body, "whsec_before"))).status == 202
    async with after.lifespan():
        assert (await post(after, "stripe", BODY, stripe_headers(BODY, "whsec_before"))).status == 401
    return mark


def test_doctor_knows_a_secret_that_was_taken_out_too_early(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    write_config(in_folder, database)
    mark = asyncio.run(use_and_replace(make_inbox, 3))
    told = run("doctor")
    assert told.code == 1
    assert f"The secret {mark}, which verified 3 deliveries until then, is no longer configured" in told.out
    assert "Add it to `secrets` again" in told.out and "whsec" not in told.out
    (case,) = run("doctor", "signature", "--json").lines
    assert [finding["cause"] for finding in case["findings"]] == ["removed secret"]
    configured, removed = run("secrets", "--json").lines
    assert (configured["verified"], configured["secret"]) == (0, 0)
    assert (removed["mark"], removed["verified"], removed["secret"]) == (mark, 3, None)
    assert "no delivery was verified since" in removed["advice"]
    assert "removed" in run("secrets").out


def test_a_secret_that_was_rotated_in_time_is_no_problem(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    async def use_the_new_one() -> None:
        await use_and_replace(make_inbox, 1)
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


def test_a_secret_that_was_replaced_is_only_a_note_until_a_delivery_is_refused(
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
    told = run("doctor", "--json")
    (note,) = [line for line in told.lines if "no longer configured" in line["message"]]
    assert (
        told.code == 0
        and note["level"] == "note"
        and "The new secret has not verified a delivery yet" in note["message"]
    )


def test_a_new_database_is_for_its_owner_alone_and_doctor_says_where_others_can_read_it(
    run: Run, in_folder: Path
) -> None:
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
    told = run("doctor", "--json")
    (line,) = [line for line in told.lines if "all users" in line["message"]]
    assert told.code == 0 and line["level"] == "note" and "chmod o= inbox.db*" in line["message"]


def test_init_writes_files_for_their_owner_alone(run: Run, in_folder: Path) -> None:
    before = os.umask(0o022)
    try:
        assert run("init").code == 0
    finally:
        os.umask(before)
    assert {(in_folder / name).stat().st_mode & 0o777 for name in ("oncehook.toml", "hooks.py")} == {0o600}


def test_doctor_says_when_the_database_is_not_there(run: Run, in_folder: Path) -> None:
    write_config(in_folder, "sqlite:///nowhere.db")
    told = run("doctor")
    assert told.code == 1 and "there is no database at" in told.out


def test_secrets_says_which_may_go(
    run: Run,
    in_folder: Path,
    database: str,
    make_inbox: Callable[..., Inbox],
) -> None:
    async def use() -> None:
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_new", "whsec_test"])
        async with inbox.lifespan():
            body = stripe_body()
            assert (await post(inbox, "stripe", body, stripe_headers(body, "whsec_new"))).status == 202

    config = write_config(in_folder, database)
    config.write_text(config.read_text().replace('["whsec_test"]', '["whsec_new", "whsec_test"]'))
    asyncio.run(use())
    first, second = run("secrets", "--json").lines
    assert (first["secret"], first["verified"], first["advice"]) == (0, 1, "in use")
    assert second["verified"] == 0 and second["last_used_at"] is None and "safe to remove" in second["advice"]
    shown = run("secrets")
    assert "secrets[1]" in shown.out and "whsec" not in shown.out


@pytest.mark.parametrize(
    ("days", "advice"), [(1, "keep it until 3 days have passed"), (6, "last used 6 days ago: safe to remove")]
)
def test_an_old_secret_may_go_once_it_has_been_quiet_for_longer_than_the_provider_retries(
    days: int, advice: str
) -> None:
    source = make_source(secrets=["whsec_new", "whsec_old"])
    new, old = source.fingerprints
    now, first = "2026-11-15T00:00:00.000000Z", "2026-11-01T00:00:00.000000Z"
    used = [
        SecretUse("stripe", new, 5, first, "2026-11-14T23:59:00.000000Z", now),
        SecretUse("stripe", old, 5, first, f"2026-11-{15 - days:02d}T00:00:00.000000Z", now),
    ]
    assert advice in list_secrets([source], used)[1]["advice"]
