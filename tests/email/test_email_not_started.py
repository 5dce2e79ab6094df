"""`inbox.email` on an inbox that is not started: each operation opens the database, and checks its schema."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Inbox
from oncehook.runtime import checks
from oncehook.testing import post
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

JANE = "jane@example.com"


@pytest.mark.without_schema
async def test_email_operations_work_on_an_inbox_that_is_not_started(make_inbox: Callable[..., Inbox]) -> None:
    email = make_inbox(email_retention="1h").email
    assert await email.can_send(JANE)
    await email.suppress(JANE, actor="me", note="asked by phone")
    assert not await email.can_send(JANE)
    found = await email.suppression(JANE)
    assert found is not None and found["note"] == "asked by phone"
    assert [row["address"] for row in await email.suppressions()] == [JANE]
    assert (await email.status("m1"), await email.events("m1"), await email.counts()) == ([], [], [])
    assert (await email.verify()).differences == [] and (await email.rebuild()).addresses == 1
    assert (await email.prunable(), await email.prune()) == (0, (0, False))
    await email.allow(JANE, actor="me")
    assert await email.can_send(JANE)
    assert await email.knows(JANE) and await email.forget(JANE, actor="me") > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"by": ["day", "foo"]}, "by has 'foo', which is not a dimension; the dimensions are day, source"),
        ({"by": "day"}, r"by='day' is a string: pass a list of dimensions, such as \['day'\]"),
        ({"since": "30d"}, "since='30d' is not a datetime"),
        ({"until": 5}, "until=5 is not a datetime"),
    ],
)
async def test_counts_reject_unknown_dimensions_and_bounds(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        await Inbox("sqlite:///never-opened.db").email.counts(**options)


@pytest.mark.parametrize("migrate", ["auto", "never"])
async def test_email_operations_reject_a_schema_from_before_the_first_release(
    database: str, make_inbox: Callable[..., Inbox], migrate: str
) -> None:
    run_sql(database, "DELETE FROM webhook_migrations")
    run_sql(database, "INSERT INTO webhook_migrations (number, name) VALUES (1, 'door'), (22, 'unhandled')")
    with pytest.raises(ConfigurationError, match="before the first release"):
        await make_inbox(migrate=migrate).email.can_send(JANE)


@pytest.mark.without_schema
async def test_email_operations_reject_a_schema_that_is_not_up_to_date(make_inbox: Callable[..., Inbox]) -> None:
    with pytest.raises(ConfigurationError, match="run `oncehook migrate`"):
        await make_inbox(migrate="never").email.can_send(JANE)


async def test_running_inbox_opens_no_second_store_until_its_handlers_have_ended(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("app", provider="standard-webhooks", verify="none")
    begun, stopping = asyncio.Event(), asyncio.Event()
    results: list[tuple[bool, bool]] = []

    @inbox.on("app", "*")
    async def handle(event: Event) -> None:
        begun.set()
        await stopping.wait()
        results.append((bool(await inbox.email.can_send(JANE)), await inbox.pause("app")))

    monkeypatch.setattr(checks, "make_store", None)  # a second store would fail: it must use the one that is open
    await inbox.start()
    await post(inbox, "app", b'{"type": "a"}', {"webhook-id": "1"})
    await asyncio.wait_for(begun.wait(), 30)
    stop = asyncio.create_task(inbox.stop())
    await eventually(lambda: not inbox._runtime.is_running, "the inbox is stopping")
    stopping.set()
    await stop
    assert results == [(True, True)]
