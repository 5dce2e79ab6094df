"""The consumers of an inbox: their settings, the start-up checks, and what other processes know of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Inbox
from oncehook.handlers import roster
from oncehook.testing import deliver
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def handle(event: Event) -> None: ...


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def test_process_registers_its_consumers_when_it_starts(shop: Inbox, rows: Rows) -> None:
    shop.on("stripe", "invoice.*", consumer="ledger")(handle)
    shop.consumer("ledger", rate="50/s", where={"livemode": True}, retry={"attempts": 3})
    async with shop.lifespan():
        ((name, source, patterns, settings),) = rows("SELECT name, source, patterns, settings FROM webhook_consumers")
    assert (name, source, json.loads(patterns)) == ("ledger", "stripe", ["invoice.*"])
    assert json.loads(settings) == {"rate": 50.0, "where": {"livemode": True}}


async def test_handler_that_is_added_later_is_registered(shop: Inbox) -> None:
    async with shop.lifespan():
        shop.on("stripe", "invoice.*", consumer="ledger")(handle)
        shop._runtime.start_worker()
        await eventually(lambda: shop._runtime.consumers.are_subscribed("stripe"), "the roster registers the consumer")


async def test_process_registers_its_handlers_again_after_a_person_removed_their_consumer(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "SEEN_SECONDS", 0.0)
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.on("stripe", "invoice.*", consumer="ledger")(handle)
    async with inbox.lifespan():
        store = inbox._runtime.store
        await eventually(lambda: inbox._runtime.roster.is_known, "the process is registered")
        await store.consumers.remove("ledger", "a person")
        await inbox._runtime.roster.refresh()
        assert [row.name for row in await store.consumers.all()] == ["ledger"]
        assert [row.consumer for row in await store.roster.live_handlers()] == ["ledger"]


async def test_process_that_starts_while_another_registers_its_consumer_writes_the_receipts(
    shop: Inbox, make_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process registers the consumer after this one has read the subscriptions, and before it registers."""
    other = make_inbox()
    other.source("stripe", secrets=["whsec_test"])
    for inbox in (shop, other):
        inbox.on("stripe", "invoice.*", consumer="ledger")(handle)
    consumers = shop._runtime.consumers
    register = consumers.register

    async def register_after_the_other(*, starting: bool = False) -> bool:
        async with other.lifespan():
            return await register(starting=starting)

    monkeypatch.setattr(consumers, "register", register_after_the_other)
    async with shop.lifespan():
        await deliver(shop, "stripe", stripe_body("evt_1"))
    assert [row[0] for row in rows("SELECT consumer FROM webhook_receipts ORDER BY id")] == ["main", "ledger"]


async def test_receiver_without_the_code_writes_receipts_for_consumers_of_other_processes(
    shop: Inbox, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    receiver = make_inbox()
    receiver.source("stripe", secrets=["whsec_test"])
    shop.on("stripe", "invoice.*", consumer="ledger")(handle)
    async with receiver.lifespan():
        async with shop.lifespan():
            await eventually(lambda: receiver._runtime.consumers.are_subscribed("stripe"), "the watch sees the change")
        await deliver(receiver, "stripe", stripe_body("evt_1"))  # the consumer's process has stopped
    assert [row[0] for row in rows("SELECT consumer FROM webhook_receipts ORDER BY id")] == ["main", "ledger"]


async def test_filter_that_this_version_cannot_read_loses_no_event(
    shop: Inbox, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    await_settings = json.dumps({"where": {"a": {"resembles": 1}}})
    async with shop.lifespan():
        await shop._runtime.store.consumers.register(
            {("ledger", "stripe"): ["*"]}, {"ledger": json.loads(await_settings)}
        )
        await shop._runtime.settings_watch.refresh()
        await deliver(shop, "stripe", stripe_body("evt_1"))
    assert [tuple(row) for row in rows("SELECT consumer, status FROM webhook_receipts ORDER BY id")] == [
        ("main", "received"),
        ("ledger", "received"),
    ]
    assert "consumer_filter_unreadable" in [name for name, _ in emitted]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": "fast"}, r"consumers\.ledger\.rate is 'fast': expected a rate such as 50/s"),
        ({"where": {"livemode": []}}, r"consumers\.ledger\.where"),
        ({"typs": ["a"]}, r"consumers\.ledger\.typs is not a setting: did you mean consumers\.ledger\.types\?"),
        ({"concurrency": 0}, r"consumers\.ledger\.concurrency"),
        ({"max_attempts": 3, "retry": {"attempts": 2}}, "max_attempts and retry.attempts"),
        ({"forward": "not a url"}, r"consumers\.ledger\.forward is not usable"),
    ],
)
def test_wrong_setting_is_an_error_that_names_it(shop: Inbox, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        shop.consumer("ledger", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": ["strpe"]}, "consumers.ledger.sources lists 'strpe', which does not exist: did you mean stripe?"),
        ({"sources": []}, "is for source 'stripe', which is not in consumers.ledger.sources"),
        ({"types": ["charge.*"]}, "is for 'invoice.*', which consumers.ledger.types never accepts"),
    ],
)
async def test_setting_that_contradicts_a_handler_is_an_error_at_start(
    shop: Inbox, settings: dict[str, Any], message: str
) -> None:
    shop.on("stripe", "invoice.*", consumer="ledger")(handle)
    shop.consumer("ledger", **settings)
    with pytest.raises(ConfigurationError) as raised:
        await shop.start()
    assert message in str(raised.value)


async def test_consumer_without_handler_and_forward_is_an_error_at_start(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.consumer("ledger", concurrency=2)
    with pytest.raises(ConfigurationError, match=r"consumers\.ledger has no handler and no forward"):
        await inbox.start()


def test_names_of_consumers_are_checked(shop: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="main is the consumer of handlers without a consumer's name"):
        shop.consumer("main", concurrency=2)
    with pytest.raises(ConfigurationError, match="not a name of a consumer"):
        shop.on("stripe", "*", consumer="Led ger")(handle)
    shop.consumer("ledger")
    with pytest.raises(ConfigurationError, match="defined twice"):
        shop.consumer("ledger")


def test_two_handlers_of_one_consumer_tie_and_those_of_two_consumers_do_not(shop: Inbox) -> None:
    shop.on("stripe", "invoice.*")(handle)
    shop.on("stripe", "invoice.*", consumer="ledger")(handle)
    with pytest.raises(ConfigurationError, match="tie for stripe"):
        shop.on("stripe", "invoice.*", consumer="ledger")(handle)
