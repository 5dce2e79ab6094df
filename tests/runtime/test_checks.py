"""The checks and warnings when an inbox starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from taskiq import InMemoryBroker, TaskiqEvents

from oncehook import ConfigurationError, Event, Inbox
from oncehook.model.errors import Unavailable
from oncehook.runtime.checks import check_configuration, check_sources, open_store
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

Lines = Callable[[], list[dict[str, Any]]]
only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@only_sqlite
async def test_effect_retention_below_the_dedupe_window_is_rejected(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(effect_retention="1d")
    inbox.source("stripe", secrets=["whsec_test"])
    with pytest.raises(ConfigurationError, match="effect_retention"):
        check_configuration(inbox._runtime)


@only_sqlite
async def test_a_handler_for_an_unknown_source_is_rejected(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], types=["invoice.*"])

    @inbox.on("strip", "invoice.paid")
    async def typo(event: Event) -> None: ...

    with pytest.raises(ConfigurationError, match=r"strip.*oncehook sources add strip"):
        check_sources(inbox._runtime)


@pytest.mark.without_schema
async def test_a_missing_schema_is_an_error_if_the_inbox_must_not_migrate(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(migrate="never")
    with pytest.raises(ConfigurationError, match="the database schema is out of date: run `oncehook migrate`"):
        await inbox.start()
    assert not inbox._runtime.is_running


@pytest.mark.without_schema
async def test_the_inbox_migrates_by_default(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    async with make_inbox().lifespan():
        assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


async def test_a_second_store_is_open_only_for_its_block(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    async with open_store(inbox._runtime) as store:
        assert store is not inbox._runtime.store
        await store.ping()
    with pytest.raises(Unavailable):
        await store.ping()


@only_sqlite
async def test_sources_without_verification_or_secret_are_logged(
    make_inbox: Callable[..., Inbox], lines: Lines
) -> None:
    inbox = make_inbox()
    inbox.source("open", provider="stripe", verify="none")
    inbox.source("notion")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        pass
    logged = [(line["event"], line.get("source")) for line in lines()]
    assert ("unverified_source", "open") in logged and ("secret_missing", "notion") in logged
    assert not any(source == "stripe" for _, source in logged)


@only_sqlite
async def test_encrypted_source_without_a_key_does_not_start_and_says_what_to_do(
    make_inbox: Callable[..., Inbox],
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], encrypt=True)
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.encrypt needs a key: `oncehook keys generate`"):
        await inbox.start()
    assert not inbox._runtime.is_running


@only_sqlite
async def test_encrypted_source_with_an_email_projection_is_rejected(make_inbox: Callable[..., Inbox]) -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.postmark: email and encrypt contradict each other"):
        make_inbox().source("postmark", secrets=["user:password"], encrypt=True, email=True)


async def test_inbox_with_a_worker_does_not_start_with_a_task_queue_that_loses_tasks(tmp_path: Path) -> None:
    for has_worker in (True, False):
        inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}", worker=has_worker)
        inbox.tasks(RabbitmqBroker(url="amqp://127.0.0.1:1"))
        if has_worker:
            with pytest.raises(ConfigurationError, match="confirm_delivery=True"):
                await inbox.start()
        else:
            async with inbox.lifespan():
                await inbox.ready()


async def test_relay_that_stops_closes_the_task_queues(tmp_path: Path) -> None:
    broker, events = InMemoryBroker(), list[str]()
    broker.add_event_handler(TaskiqEvents.CLIENT_STARTUP, lambda state: events.append("start"))
    broker.add_event_handler(TaskiqEvents.CLIENT_SHUTDOWN, lambda state: events.append("stop"))
    task = broker.task(task_name="send")(lambda: None)
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}", poll="50ms")
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.tasks(broker)

    @inbox.on("stripe", "*")
    async def enqueue(event: Event) -> None:
        await event.enqueue(task)

    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        await eventually(lambda: events == ["start"], "the relay hands the task over")
    assert events == ["start", "stop"]
