"""`isolated`: a copy of an inbox on the database of a test."""

from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from oncehook import ConfigurationError, Effect, Event, Inbox, Retry, State
from oncehook.testing import (
    advance,
    deliver,
    drain,
    isolated,
    perform,
)
from tests.support.http_target import receiving
from tests.support.work import fail_first_attempts

pytestmark = pytest.mark.anyio


async def test_isolated_inbox_runs_the_effects_of_the_original(tmp_path: Path) -> None:
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
        assert [effect.key for effect in (await drain(inbox)).effects] == mails == ["mail:in_1"]


async def test_isolated_inbox_has_the_handlers_and_does_not_change_the_original(tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path / 'yours.db'}", lease="7s")
    yours.source("stripe", secrets=["whsec_test"], types=["invoice"])
    attempts = fail_first_attempts(yours, 0)
    mine = isolated(yours, f"sqlite:///{tmp_path / 'mine.db'}", concurrency=3)
    async with mine.lifespan():
        assert (await deliver(mine, "stripe", type="charge.paid")).outcome == (200, "ignored")
        await deliver(mine, "stripe", type="invoice.paid")
        await drain(mine)
    assert attempts == [1] and (mine._runtime.settings.lease, mine._runtime.settings.concurrency) == (7.0, 3)
    assert not (tmp_path / "yours.db").exists() and not yours._runtime.is_running


async def test_isolated_inbox_copies_effects_subscribers_and_fetchers(database: str, tmp_path: Path) -> None:
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
        assert [row.status for row in await drain(mine, effects=False)] == [State.PROCESSED] and calls == []
        assert await perform(mine) == 2
        assert sorted(calls) == [("invoices", {"paid": True}), ("mail", "a@example.com", 1)]
        assert await perform(mine) == 0
        await advance(mine, "2m")
        assert await perform(mine) == 1 and calls[-1] == ("mail", "a@example.com", 2)


async def test_isolated_inbox_with_an_engine_needs_an_engine_for_the_test(tmp_path: Path) -> None:
    from sqlalchemy import create_engine

    inbox = Inbox(f"sqlite:///{tmp_path / 'a.db'}", engine=create_engine(f"sqlite:///{tmp_path / 'a.db'}"))
    with pytest.raises(ConfigurationError, match="pass an engine on the test's database"):
        isolated(inbox, f"sqlite:///{tmp_path / 'b.db'}")
    mine = isolated(inbox, f"sqlite:///{tmp_path / 'b.db'}", engine=create_engine(f"sqlite:///{tmp_path / 'b.db'}"))
    async with mine.lifespan():
        assert await drain(mine) == []


async def test_isolated_inbox_needs_no_secret_of_the_original(tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path}/yours.db")
    yours.source("stripe", secrets=["env:SHOP_SECRET"])
    yours.source("paypal", secrets=["env:SHOP_SECRET"], webhook_id="1")
    yours.source("meta", secrets=["env:SHOP_SECRET"], verify_token="env:VERIFY_TOKEN")
    handled: list[str] = []

    @yours.on("stripe", "*")
    @yours.on("paypal", "*")
    @yours.on("meta", "*")
    async def handle(event: Event) -> None:
        handled.append(event.source)

    inbox = isolated(yours, f"sqlite:///{tmp_path}/test.db")
    async with inbox.lifespan():
        for source in ("stripe", "paypal", "meta"):
            assert (await deliver(inbox, source)).outcome[1] == "accepted"
        await drain(inbox)
    assert sorted(handled) == ["meta", "paypal", "stripe"]


async def test_isolated_inbox_signs_forwards_with_a_new_secret(tmp_path: Path) -> None:
    async with receiving() as receiver:
        (tmp_path / "oncehook.toml").write_text(
            f'[sources.stripe]\nsecrets = ["env:SHOP_SECRET"]\nforward = "{receiver.url}"\n'
            'forward_secret = "env:FORWARD_SECRET"\n'
        )
        yours = Inbox(config=str(tmp_path / "oncehook.toml"))
        inbox = isolated(yours, f"sqlite:///{tmp_path}/test.db")
        async with inbox.lifespan():
            await deliver(inbox, "stripe", type="invoice.paid")
            await drain(inbox)
        (request,) = receiver.requests
        assert request.headers["webhook-signature"].startswith("v1,")


async def test_handler_added_to_an_isolated_inbox_is_not_added_to_the_original(tmp_path: Path) -> None:
    yours = Inbox(f"sqlite:///{tmp_path}/yours.db")
    yours.source("stripe", secrets=["whsec_test"])
    isolated(yours, f"sqlite:///{tmp_path}/test.db").on("stripe", "*")(lambda event: None)
    assert list(yours._runtime.handlers) == []


async def test_isolated_inbox_with_an_encrypted_source_needs_no_key_of_production(tmp_path: Path) -> None:
    yours = Inbox("sqlite:///never-opened.db", keys=["env:NOT_SET_IN_TESTS"])
    yours.source("stripe", secrets=["whsec_test"], encrypt=True)
    attempts = fail_first_attempts(yours, 0)
    for number in range(2):
        inbox = isolated(yours, f"sqlite:///{tmp_path}/test.db")
        async with inbox.lifespan():
            await deliver(inbox, "stripe", type="invoice.paid")
            (receipt,) = await drain(inbox)
            assert receipt.status is State.PROCESSED and len(attempts) == number + 1
            payload = await inbox._runtime.store.receipts.payload(receipt.receipt)
            assert payload is not None and payload.is_encrypted


async def test_isolated_inbox_has_the_task_queues_of_the_original(tmp_path: Path) -> None:
    broker = StubBroker()
    send = dramatiq.actor(broker=broker, actor_name="send")(lambda invoice: None)
    yours = Inbox("sqlite:///never-opened.db")
    yours.source("stripe", secrets=["env:NOT_SET_IN_TESTS"])
    yours.tasks(broker)

    @yours.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.enqueue(send, event.object_id)

    inbox = isolated(yours, f"sqlite:///{tmp_path / 'test.db'}")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        (receipt,) = await drain(inbox)
    assert receipt.status is State.PROCESSED
    assert broker.queues["default"].qsize() == 1
