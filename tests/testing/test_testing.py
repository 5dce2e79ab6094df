"""The helpers that users test their handlers with, on both databases, and the fixtures in a pytest of their own."""

import json
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import oncehook.testing
from oncehook import ConfigurationError, Effect, Event, Inbox, Retry, RetryLater, State
from oncehook.model.effect import EffectState
from oncehook.providers.definition import built_in, built_in_names
from oncehook.providers.expressions import parse_time
from oncehook.store.rows import EffectTarget
from oncehook.testing import (
    Bench,
    NotAtRest,
    Performed,
    advance,
    crash,
    deliver,
    drain,
    isolated,
    make_pair,
    perform,
    post,
    prune,
    receipt,
    replay,
    sign,
)
from tests.support import ROOT
from tests.support.events import Rows, stripe_body
from tests.support.servers import Postgres
from tests.support.user_project import run_pytest

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(lease="30s")
    inbox.source("stripe", secrets=["whsec_old", "whsec_new"])
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        yield inbox


# -- deliveries -----------------------------------------------------------------------------------------------------


async def test_what_is_signed_here_is_taken_at_the_door(inbox: Inbox) -> None:
    body = stripe_body("evt_1")
    assert (await post(inbox, "stripe", body, sign("stripe", body, "whsec_new"))).outcome == (202, "accepted")
    assert (await post(inbox, "stripe", body, sign("stripe", body, "guessed"))).outcome == (401, "bad_signature")
    assert (await post(inbox, "stripe", body, sign("stripe", body, "whsec_new", now=1.0))).status == 401
    headers = sign("github", b"{}", "github-secret", headers={"X-GitHub-Delivery": "1", "X-GitHub-Event": "push"})
    assert (await post(inbox, "github", b"{}", headers)).outcome == (202, "accepted")


def test_a_signature_that_belongs_into_the_body_is_not_given_as_headers() -> None:
    body = b'{"signature": {"timestamp": "1", "token": "t"}, "event-data": {}}'
    with pytest.raises(ValueError, match="mailgun puts its signature into the body: use deliver"):
        sign("mailgun", body, "key")
    with pytest.raises(ConfigurationError, match="stripes"):
        sign("stripes", body, "key")


OPTIONS: dict[str, Any] = {
    "topics": ["arn:aws:sns:eu-west-1:1:mine"],
    "public_url": "https://a.example/webhooks/mine?account=1",
    "webhook_id": "WH-1",
    "verify_token": "a token",
}


def every_provider(database: str) -> Inbox:
    """An inbox with a source of each provider, none of whose private keys is known here."""
    inbox = Inbox(database, worker=False)
    for name in built_in_names():
        options = {option: OPTIONS[option] for option in built_in(name).options}
        inbox.source(f"my-{name}", provider=name, secrets=[make_pair(built_in(name)).verifying], **options)
    return inbox


async def test_an_event_of_every_provider_is_delivered_once_with_its_copies(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'one.db'}"
    inbox = isolated(every_provider(f"sqlite:///{tmp_path / 'other.db'}"), database)
    async with inbox.lifespan():
        for name in built_in_names():
            first = await deliver(inbox, name, copies=3)
            others = [*first.others, await deliver(inbox, f"my-{name}", first.sent)]
            assert first.status in (200, 202, 204) and not first.was_duplicate, (name, first)
            if built_in(name).event.id == "new:delivery" or not first.body.startswith(b"{"):
                assert {other.outcome for other in others} == {first.outcome}, (name, others)
                continue
            events = first.json.get("accepted", 1)
            assert first.outcome[1] == "accepted" and events > 0, (name, first)
            for other in others:
                assert other.json.get("status") == "duplicate" or other.json["duplicate"] == events, (name, other)
    assert not (tmp_path / "other.db").exists()
    with closing(sqlite3.connect(tmp_path / "one.db")) as opened:
        receipts = dict(opened.execute("SELECT provider, count(*) FROM webhook_receipts GROUP BY provider"))
    assert set(receipts) == set(built_in_names()) and receipts["telegram"] == receipts["square"] == 1


async def test_a_form_is_delivered_as_plain_data_too(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("twilio", secrets=["a secret"], public_url="https://a.example/hook")
    inbox.source("mandrill", secrets=["a secret"], public_url="https://a.example/hook")
    inbox.source("braintree", secrets=["public|private"])
    async with inbox.lifespan():
        sms = await deliver(inbox, "twilio", {"MessageSid": "SM1", "MessageStatus": "delivered"})
        found = await receipt(inbox, sms)
        assert (found.object_id, found.type) == ("SM1", "delivered")
        mail = await deliver(inbox, "mandrill", [{"event": "send", "_id": "m1", "ts": 1}])
        assert mail.status == 202 and mail.json["accepted"] == 1
        with pytest.raises(ValueError, match="the events of braintree are XML"):
            await deliver(inbox, "braintree", {"kind": "check"})


async def test_an_id_is_put_into_a_form(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("twilio", secrets=["a secret"], public_url="https://a.example/hook", id="MessageSid")
    async with inbox.lifespan():
        answer = await deliver(inbox, "twilio", id="SM9")
        assert (await receipt(inbox, answer)).event_id == "SM9"


async def test_an_answer_that_is_a_text_has_that_as_its_outcome(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("adyen", secrets=["00ff" * 16])
    async with inbox.lifespan():
        answer = await deliver(inbox, "adyen")
        assert answer.outcome == (200, "[accepted]") and answer.receipt is None and not answer.was_duplicate


async def test_a_forged_or_tampered_delivery_is_refused_and_leaves_nothing(inbox: Inbox, rows: Rows) -> None:
    for forged in ({"secret": "guessed"}, {"tampered": True}, {"headers": {"stripe-signature": "t=1,v1=00"}}):
        assert (await deliver(inbox, "stripe", **forged)).status == 401, forged  # type: ignore[arg-type]
    assert (await deliver(inbox, "stripe", now=inbox._runtime.clock.now() - 3600)).outcome == (401, "stale_timestamp")
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


async def test_a_payload_is_plain_data_or_the_exact_bytes(inbox: Inbox, rows: Rows) -> None:
    answer = await deliver(inbox, "stripe", {"id": "evt_1", "type": "invoice.paid"})
    found = await receipt(inbox, answer)
    assert (found.event_id, found.type, found.receipt) == ("evt_1", "invoice.paid", answer.receipt)
    exact = b'{ "id" : "evt_2","type":"x" }'
    await deliver(inbox, "stripe", exact)
    assert (exact,) in [(bytes(body),) for (body,) in rows("SELECT body FROM webhook_payloads")]


async def test_id_and_type_are_put_where_the_provider_has_them(inbox: Inbox) -> None:
    for source, type_ in (("stripe", "charge.refunded"), ("github", "pull_request.opened")):
        found = await receipt(inbox, await deliver(inbox, source, type=type_, id="mine"))
        assert (found.event_id, found.type) == ("mine", type_)
    found = await receipt(inbox, await deliver(inbox, "github", {"action": "opened"}, type="issues.opened", id="2"))
    assert (found.event_id, found.type) == ("2", "issues.opened")


async def test_an_id_of_several_facts_and_an_unknown_source_are_told(inbox: Inbox) -> None:
    with pytest.raises(LookupError, match="'nobody' is neither a source nor a provider of one: the sources are"):
        await deliver(inbox, "nobody")
    with pytest.raises(LookupError, match="the response has no receipt"):
        await receipt(inbox, await deliver(inbox, "stripe", secret="guessed"))
    with pytest.raises(ValueError, match="the payload has no object at 'id'"):
        await deliver(inbox, "stripe", b"[]", id="1")


async def test_an_inbox_that_does_not_run_says_so(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    for helper in (deliver(inbox, "stripe"), drain(inbox), crash(inbox), advance(inbox, "1h")):
        with pytest.raises(RuntimeError, match="the inbox is not running"):
            await helper


@pytest.mark.parametrize("name", ["paypal", "stripe"])
def test_secret_is_made_for_a_provider_by_its_name(name: str) -> None:
    pair = make_pair(name)
    assert pair.signing and pair.verifying and (pair.signing == pair.verifying) is (name == "stripe")
    with pytest.raises(ConfigurationError, match="strip"):
        make_pair("strip")


async def test_a_public_key_alone_cannot_sign(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    pair = make_pair(built_in("sendgrid"))
    inbox.source("sendgrid", secrets=[pair.verifying])
    async with inbox.lifespan():
        with pytest.raises(ConfigurationError, match=r"sources\.sendgrid verifies with a public key"):
            await deliver(inbox, "sendgrid")
        assert (await deliver(inbox, "sendgrid", secret=pair.signing)).status == 202


async def test_an_inline_source_is_worked_on_before_the_answer(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe")).outcome == (200, "processed")


# -- work -----------------------------------------------------------------------------------------------------------


def failing(inbox: Inbox, times: int, **retry: Any) -> list[int]:
    attempts: list[int] = []

    @inbox.on("stripe", "*", retry=Retry(**retry))
    async def handle(event: Event) -> None:
        attempts.append(event.attempt)
        if event.attempt <= times:
            raise ConnectionError("the bank is closed")

    return attempts


async def test_a_retry_that_is_due_later_stays_until_time_is_moved(inbox: Inbox) -> None:
    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if event.attempt == 1:
            raise RetryLater("not yet", after="2h")

    await deliver(inbox, "stripe")
    (first,) = await drain(inbox)
    assert (first.status, first.attempts) == (State.RETRYING, 1)
    await advance(inbox, "1h")
    assert await drain(inbox) == []
    await advance(inbox, "75m")
    (second,) = await drain(inbox)
    assert (second.status, second.attempts) == (State.PROCESSED, 2)


async def test_with_later_every_receipt_comes_to_its_end(inbox: Inbox) -> None:
    attempts = failing(inbox, 99, attempts=4, first=3600)
    await deliver(inbox, "stripe")
    (dead,) = await drain(inbox, later=True)
    assert (dead.status, dead.last_error, attempts) == (
        State.FAILED, "ConnectionError: the bank is closed", [1, 2, 3, 4]
    )  # fmt: skip
    assert await drain(inbox, later=True) == []


async def test_an_inbox_without_rest_is_told_of(inbox: Inbox) -> None:
    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await deliver(inbox, "stripe", type="more.work")

    await deliver(inbox, "stripe")
    with pytest.raises(NotAtRest, match=r"events are still due after 20 attempts in .* stripe more\.work"):
        await drain(inbox, most=20)


async def test_effects_are_performed_and_told_unless_they_are_to_stay(make_inbox: Callable[..., Inbox]) -> None:
    mails: list[str] = []
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect(retry=Retry(attempts=3))
    async def mail(effect: Effect, to: str) -> None:
        mails.append(to)
        if len(mails) == 1:
            raise ConnectionError("no route")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", mail, to="jane")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        stayed = await drain(inbox, later=True, effects=False)
        assert len(stayed) == 1 and stayed.effects == mails == []
        first = await drain(inbox)
        assert first == [] and [(one.status, one.last_error) for one in first.effects] == [
            (EffectState.RETRYING, "ConnectionError: no route")
        ]
        assert (await drain(inbox)).effects == []  # it is not due yet
        last = await drain(inbox, later=True)
        assert last.effects == [Performed("mail:in_1", "mail", {"to": "jane"}, EffectState.DONE, 2, None)]
        await deliver(inbox, "stripe", type="invoice.paid")
        again = await drain(inbox, later=True)
        assert len(again) == 1 and again.effects == []
    assert mails == ["jane", "jane"]


async def test_an_effect_whose_process_died_comes_back_too(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.effect(name="mail")(lambda effect: None)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "mail")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        await drain(inbox, effects=False)
        assert await inbox._runtime.store.effects.lease(1, "gone", [EffectTarget("function", "mail", 30.0)])
        assert (await drain(inbox)).effects == []
        await advance(inbox, "31s")
        (performed,) = (await drain(inbox, later=True)).effects
    assert (performed.status, performed.attempts) == (EffectState.DONE, 2)


async def test_pruning_takes_the_keys_of_effects_past_their_time(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox(worker=False, effect_retention="60d")
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.effect(name="mail")(lambda effect: None)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "mail")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        await drain(inbox)
        for after, left in (("50d", 1), ("11d", 0)):
            await advance(inbox, after)
            await prune(inbox)
            assert rows("SELECT count(*) FROM webhook_effects") == [(left,)]


async def test_an_isolated_inbox_has_your_effects(tmp_path: Path) -> None:
    yours = Inbox("sqlite:///never-opened.db")
    yours.source("stripe", secrets=["whsec_test"])
    mails: list[str] = []

    @yours.effect
    def mail(effect: Effect) -> None:
        mails.append(effect.key)

    @yours.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", mail)

    inbox = isolated(yours, f"sqlite:///{tmp_path}/test.db")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        assert [one.key for one in (await drain(inbox)).effects] == mails == ["mail:in_1"]


async def test_a_worker_beside_the_test_is_refused(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=True)
    async with inbox.lifespan():
        with pytest.raises(RuntimeError, match="this inbox runs a worker"):
            await drain(inbox)


async def test_a_crashed_workers_receipt_comes_back_when_its_lease_has_run_out(inbox: Inbox) -> None:
    attempts = failing(inbox, 0, first=0, most=0)
    await deliver(inbox, "stripe")
    (taken,) = await crash(inbox)
    assert (taken.status, taken.attempts) == (State.PROCESSING, 1)
    assert await drain(inbox) == []
    await advance(inbox, "31s")
    (done,) = await drain(inbox)
    assert (done.status, done.attempts, attempts) == (State.PROCESSED, 2, [2])


async def test_a_replay_is_handled_again(inbox: Inbox) -> None:
    attempts = failing(inbox, 0)
    answer = await deliver(inbox, "stripe")
    assert await replay(inbox, answer) == 0, "it is not finished"
    await drain(inbox)
    assert await replay(inbox, answer) == 1
    (again,) = await drain(inbox)
    assert (again.status, again.replays, attempts) == (State.PROCESSED, 1, [1, 1])


async def test_after_its_window_an_event_is_fresh_again(inbox: Inbox) -> None:
    failing(inbox, 0)
    first = await deliver(inbox, "stripe", id="evt_1")
    await drain(inbox)
    await advance(inbox, "20d")
    assert not await prune(inbox)
    assert (await deliver(inbox, "stripe", id="evt_1")).outcome == (200, "duplicate")
    await advance(inbox, "11d")
    assert (await prune(inbox)).receipts == {"stripe": 1}
    again = await deliver(inbox, "stripe", id="evt_1")
    assert again.outcome == (202, "accepted") and again.receipt != first.receipt


# -- time -----------------------------------------------------------------------------------------------------------


async def test_every_time_that_is_recorded_moves_and_nothing_else(inbox: Inbox, rows: Rows) -> None:
    failing(inbox, 1)
    answer = await deliver(inbox, "stripe", copies=2)
    await inbox._runtime.reception.duplicates.drain()
    await drain(inbox, later=True)
    await replay(inbox, answer)
    await crash(inbox)
    before = everything(rows, inbox)
    await advance(inbox, "31d")
    after = everything(rows, inbox)
    moved = 0
    assert before.keys() == after.keys()
    for place, value in before.items():
        if isinstance(value, datetime):
            assert abs(value - after[place] - timedelta(days=31)) < timedelta(milliseconds=2), place
            moved += 1
        elif place[1] != "day":
            assert after[place] == value, place
    assert moved > 10
    payload = await inbox._runtime.store.receipts.payload(answer.receipt or 0)
    assert payload is not None and answer.sent is not None and payload.body == answer.sent.body


def everything(rows: Rows, inbox: Inbox) -> dict[tuple[str, str, int], Any]:
    """Every value of every table of ours, by table, column and row."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if inbox._runtime.settings.database.startswith("postgresql"):
        names = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
    found: dict[tuple[str, str, int], Any] = {}
    for (table,) in rows(names):
        if table.startswith("webhook_"):
            columns = columns_of(rows, inbox, table)
            listed = ", ".join(columns)
            for number, row in enumerate(rows(f"SELECT {listed} FROM {table} ORDER BY 1")):
                found |= {(table, name, number): as_time(value) for name, value in zip(columns, row, strict=True)}
    return found


def columns_of(rows: Rows, inbox: Inbox, table: str) -> list[str]:
    sql = f"SELECT name FROM pragma_table_info('{table}')"
    if inbox._runtime.settings.database.startswith("postgresql"):
        sql = f"SELECT attname::text FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
    return [name for (name,) in rows(sql)]


def as_time(value: Any) -> Any:
    return parse_time(value) if isinstance(value, str) and value[4:5] == "-" and value.endswith("Z") else value


async def test_a_column_that_holds_a_time_is_named_so_that_sqlite_knows_it(inbox: Inbox, rows: Rows) -> None:
    if inbox._runtime.settings.database.startswith("postgresql"):
        columns = [row["column_name"] for row in await inbox._runtime.store.database.executor.read("time_columns")]  # type: ignore[attr-defined]
        assert [name for name in columns if not (name == "at" or name.endswith(("_at", "_until")))] == []


# -- plain functions, and isolation ---------------------------------------------------------------------------------


def test_a_plain_function_has_it_all_without_await(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    failing(inbox, 1)
    with Bench(inbox) as bench:
        answer = bench.deliver("stripe", type="invoice.paid")
        assert [one.status for one in bench.drain()] == [State.RETRYING]
        bench.advance("1h")
        assert [one.status for one in bench.drain()] == [State.PROCESSED]
        assert bench.replay(answer) == 1
        assert [one.attempts for one in bench.crash()] == [1]
        assert bench.receipt(answer).status is State.PROCESSING
        assert not bench.prune()
    assert not inbox._runtime.is_running


def test_a_bench_that_cannot_start_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'x.db'}", worker=False)

    @inbox.on("nobody", "*")
    async def handle(event: Event) -> None: ...

    bench = Bench(inbox)
    with pytest.raises(ConfigurationError, match="nobody"), bench:
        pass
    assert not bench._thread.is_alive()


async def test_an_isolated_inbox_has_your_handlers_and_leaves_yours_alone(tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path / 'yours.db'}", lease="7s")
    yours.source("stripe", secrets=["whsec_test"], types=["invoice"])
    attempts = failing(yours, 0)
    mine = isolated(yours, f"sqlite:///{tmp_path / 'mine.db'}", concurrency=3)
    async with mine.lifespan():
        assert (await deliver(mine, "stripe", type="charge.paid")).outcome == (200, "ignored")
        await deliver(mine, "stripe", type="invoice.paid")
        await drain(mine)
    assert attempts == [1] and (mine._runtime.settings.lease, mine._runtime.settings.concurrency) == (7.0, 3)
    assert not (tmp_path / "yours.db").exists() and not yours._runtime.is_running


async def test_an_isolated_inbox_has_your_effects_and_performs_them_when_told_to(database: str, tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path / 'yours.db'}")
    yours.source("stripe", secrets=["whsec_test"])
    calls: list[Any] = []

    @yours.effect(retry=Retry(attempts=2, first=60, most=60))
    def send(effect: Effect, to: str) -> None:
        calls.append((effect.key, to, effect.attempt))
        if effect.attempt == 1:
            raise ConnectionError("closed")

    @yours.subscribe("invoices")
    async def publish(effect: Effect, payload: Any) -> None:
        calls.append((effect.target, payload))

    @yours.canonical("stripe")
    def fetch(event: Event) -> str:
        return "a@example.com"

    @yours.on("stripe", "*")
    async def handle(event: Event) -> None:
        to = await event.canonical()
        await event.effect("mail", send, to=to)
        await event.publish("invoices", {"paid": True})

    mine = isolated(yours, database)
    async with mine.lifespan():
        await deliver(mine, "stripe", type="invoice.paid")
        assert [one.status for one in await drain(mine, effects=False)] == [State.PROCESSED] and calls == []
        assert await perform(mine) == 2
        assert sorted(calls) == [("invoices", {"paid": True}), ("mail", "a@example.com", 1)]
        assert await perform(mine) == 0
        await advance(mine, "2m")
        assert await perform(mine) == 1 and calls[-1] == ("mail", "a@example.com", 2)


async def test_effects_of_a_process_that_died_are_performed(inbox: Inbox) -> None:
    calls: list[int] = []
    inbox.effect(name="send")(lambda effect: calls.append(effect.attempt))

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await event.effect("mail", "send")

    await deliver(inbox, "stripe", type="invoice.paid")
    await drain(inbox, effects=False)
    assert len(await inbox._runtime.store.effects.lease(1, "dead", [EffectTarget("function", "send", 45.0)])) == 1
    assert await perform(inbox) == 0
    await advance(inbox, "46s")
    await perform(inbox)  # it is taken back, and due again later
    await advance(inbox, "10m")
    assert await perform(inbox) == 1 and calls == [2]


async def test_an_inbox_with_an_engine_needs_one_for_the_test(tmp_path: Path) -> None:
    from sqlalchemy import create_engine

    inbox = Inbox(f"sqlite:///{tmp_path / 'a.db'}", engine=create_engine(f"sqlite:///{tmp_path / 'a.db'}"))
    with pytest.raises(ConfigurationError, match="pass an engine on the test's database"):
        isolated(inbox, f"sqlite:///{tmp_path / 'b.db'}")
    mine = isolated(inbox, f"sqlite:///{tmp_path / 'b.db'}", engine=create_engine(f"sqlite:///{tmp_path / 'b.db'}"))
    async with mine.lifespan():
        assert await drain(mine) == []


def test_what_is_public_is_pinned() -> None:
    assert set(oncehook.testing.__all__) == {
        "Bench", "DeliveryResponse", "Drained", "NotAtRest", "Pair", "Performed", "advance", "crash", "deliver",
        "drain", "isolated", "make_pair", "perform", "post", "prune", "receipt", "replay", "sign",
    }  # fmt: skip


# -- the fixtures ---------------------------------------------------------------------------------------------------

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox("sqlite:///never-opened.db")
inbox.source("stripe", secrets=["whsec_test"])
seen = []

@inbox.on("stripe", "invoice.paid")
async def paid(event: Event) -> None:
    seen.append(event.id)
"""

TESTS = """
import hooks, pytest
from oncehook.testing import deliver, drain

def test_plain(oncehook):
    assert oncehook.deliver("stripe", type="invoice.paid", id="evt_1").outcome == (202, "accepted")
    assert [one.status for one in oncehook.drain()] == ["processed"]
    assert hooks.seen == ["evt_1"]

def test_a_database_of_its_own(oncehook, oncehook_database):
    assert oncehook.deliver("stripe", id="evt_1").outcome == (202, "accepted")
    assert oncehook_database.startswith(SCHEME)

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_async(oncehook_inbox):
    async with oncehook_inbox.lifespan():
        assert (await deliver(oncehook_inbox, "stripe", type="invoice.paid")).status == 202
        (receipt,) = await drain(oncehook_inbox)
    assert receipt.status == "processed"
"""


def test_the_fixtures_are_an_entry_point_of_the_installed_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    found = metadata.entry_points(group="pytest11", name="oncehook")
    assert {one.name: one.value for one in found} == declared == {"oncehook": "pytest_oncehook"}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_fixtures_work_in_plain_and_async_tests(kind: str, tmp_path: Path, postgres: Postgres) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "test_hooks.py").write_text(TESTS.replace("SCHEME", repr(kind + ":")))
    options = () if kind == "sqlite" else (f"--oncehook-postgres={postgres.url('postgres')}",)
    done = run_pytest(tmp_path, *options)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "never-opened.db").exists()
    deadline = time.monotonic() + 30
    while postgres.sql("SELECT count(*) FROM pg_database WHERE datname LIKE 'oncehook_test_%'") != "0":
        assert time.monotonic() < deadline, "a test's database was left behind"  # another test's goes in its own time
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("ini", "sentence"),
    [
        ("", 'no inbox to test: set oncehook_inbox = "module:name"'),
        ("oncehook_inbox = hooks:nothing", "hooks has no Inbox named nothing"),
    ],
)
def test_without_an_inbox_the_fixtures_say_what_to_do(tmp_path: Path, ini: str, sentence: str) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "test_hooks.py").write_text("def test_plain(oncehook): ...")
    done = run_pytest(tmp_path, ini=ini)
    assert done.returncode == 1 and sentence in done.stdout, done.stdout


def test_the_fixtures_bring_nothing_along_until_they_are_used() -> None:
    code = (
        "import json, pytest, sys; before = set(sys.modules); import pytest_oncehook; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    brought = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert brought <= {"pytest_oncehook", "__future__"}
