"""Managed sources: a running inbox receives with them, without a restart."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.runtime.managed_changes import SourceChanges
from oncehook.runtime.managed_sources import managed_horizons
from tests.support.ages import set_age
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.managed import (
    FIRST,
    KEY,
    OTHER_KEY,
    SECOND,
    SIGNING,
    THIRD,
    WRONG_KEY,
    delivery_status,
    operator,
    see_changes,
)
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

MakeInbox = Callable[..., Inbox]


@pytest.fixture
def managed_inbox(make_inbox: MakeInbox) -> MakeInbox:
    """An inbox with a key ring, not started."""
    return lambda **settings: make_inbox(**{"keys": [KEY], **settings})


async def test_running_inbox_receives_a_new_source_and_answers_404_after_its_removal(managed_inbox: MakeInbox) -> None:
    inbox = managed_inbox()
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        assert await delivery_status(inbox, "acme", FIRST) == 404
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        await see_changes(inbox)
        assert await delivery_status(inbox, "acme", FIRST) == 202
        assert await delivery_status(inbox, "acme", SECOND) == 401
        await changes.remove("acme")
        await see_changes(inbox)
        assert await delivery_status(inbox, "acme", FIRST) == 404
        await changes.add("acme", [SECOND], {"provider": "stripe"})
        await see_changes(inbox)
        assert await delivery_status(inbox, "acme", SECOND) == 200, "the event is a duplicate: receipts stay"


async def test_managed_source_with_an_intake_is_an_error(managed_inbox: MakeInbox) -> None:
    async with operator(managed_inbox()) as changes:
        with pytest.raises(ConfigurationError, match="a managed source cannot have one"):
            await changes.add("acme", [FIRST], {"provider": "stripe", "intake": "sqs:https://localhost/1/orders"})


async def test_inbox_that_starts_later_has_the_source(managed_inbox: MakeInbox) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
    inbox = managed_inbox()
    async with inbox.lifespan():
        assert await delivery_status(inbox, "acme", FIRST) == 202


async def test_rotation_accepts_both_secrets_until_the_older_ends(managed_inbox: MakeInbox) -> None:
    clock = ManualClock(time.time())
    inbox = managed_inbox(clock=clock)

    async def both() -> list[int]:
        return [await delivery_status(inbox, "acme", secret, secret, clock.now()) for secret in (FIRST, SECOND)]

    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        await changes.rotate("acme", SECOND, grace=3600)
        await see_changes(inbox)
        assert await both() == [202, 202]
        clock.advance(3700)
        inbox._runtime.managed_sources.end_secrets()
        assert await both() == [401, 200]
        assert (await changes.store.directory.sources())[0].revision == 2, "the end of a secret is no change"


async def test_finish_and_an_immediate_rotation_end_the_older_secret(managed_inbox: MakeInbox) -> None:
    inbox = managed_inbox()
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        await changes.rotate("acme", SECOND)
        await changes.finish("acme")
        await see_changes(inbox)
        assert [await delivery_status(inbox, "acme", secret, secret) for secret in (FIRST, SECOND)] == [401, 202]
        await changes.rotate("acme", THIRD, grace=0)
        await see_changes(inbox)
        assert [await delivery_status(inbox, "acme", secret, secret) for secret in (SECOND, THIRD)] == [401, 202]


async def test_handler_in_code_runs_for_a_managed_source(managed_inbox: MakeInbox) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
    inbox, handled = managed_inbox(worker=True), []

    @inbox.on("acme", "invoice.*")
    async def invoice(event: Event) -> None:
        handled.append(event.id)

    async with inbox.lifespan():
        assert await delivery_status(inbox, "acme", FIRST) == 202
        await eventually(lambda: handled == ["evt_1"], "the handler runs")


async def test_handler_of_an_unknown_source_is_an_error_and_of_a_removed_one_is_not(managed_inbox: MakeInbox) -> None:
    def with_handler() -> Inbox:
        inbox = managed_inbox()

        @inbox.on("acme", "*")
        async def any_event(event: Event) -> None: ...

        return inbox

    with pytest.raises(ConfigurationError, match="oncehook sources add acme"):
        await with_handler().start()
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        async with with_handler().lifespan():
            pass
        await changes.remove("acme")
    async with with_handler().lifespan():
        pass


async def test_inbox_does_not_start_without_the_key(make_inbox: MakeInbox, managed_inbox: MakeInbox) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
    for keys in ([], [OTHER_KEY]):
        with pytest.raises(ConfigurationError, match=r"the key test encrypted.*ONCEHOOK_KEYS"):
            await make_inbox(keys=keys).start()
    inbox = make_inbox(keys=[OTHER_KEY, KEY])
    async with inbox.lifespan():
        assert await delivery_status(inbox, "acme", FIRST) == 202


async def test_inbox_does_not_start_with_another_key_under_the_same_id(
    make_inbox: MakeInbox, managed_inbox: MakeInbox
) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
    with pytest.raises(ConfigurationError, match=r"the key test in .* is not the one that encrypted the database"):
        await make_inbox(keys=[WRONG_KEY]).start()


async def test_source_whose_key_is_lost_is_left_out_and_can_be_removed(
    make_inbox: MakeInbox, managed_inbox: MakeInbox, rows: Rows
) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
    other = make_inbox(keys=[OTHER_KEY])._runtime
    async with other.opened_store() as store:
        await other.managed_sources.load(store, needs_keys=False)
        assert "acme" not in other.sources and "acme" in other.managed_sources
        await SourceChanges(other, store, "jane").remove("acme")
    assert rows("SELECT secrets FROM webhook_sources") == [("",)]


async def test_source_that_is_also_in_code_is_an_error(managed_inbox: MakeInbox, lines: Any) -> None:
    both = managed_inbox()
    both.source("acme", provider="stripe", secrets=[SECOND])
    async with both.lifespan(), operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        await see_changes(both)
        assert await delivery_status(both, "acme", SECOND) == 202, "the source in code stays"
        (line,) = [line for line in lines() if line["event"] == "managed_source_unusable"]
        assert "defined twice" in line["detail"] and line["source"] == "acme"
    with pytest.raises(ConfigurationError, match="oncehook sources remove acme"):
        await both.start()


async def test_row_that_cannot_be_used_leaves_the_source_as_it_was(
    managed_inbox: MakeInbox, rows: Rows, lines: Any
) -> None:
    inbox = managed_inbox()
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        await changes.add("other", [FIRST], {"provider": "stripe"})
        await see_changes(inbox)
        rows("UPDATE webhook_sources SET settings = '{\"provider\": \"gone\"}', revision = 3 WHERE name = 'acme'")
        rows("UPDATE webhook_revisions SET number = 3")
        await see_changes(inbox)
        assert await delivery_status(inbox, "acme", FIRST) == 202
        assert await delivery_status(inbox, "other", FIRST) == 202
        assert [line["source"] for line in lines() if line["event"] == "managed_source_unusable"] == ["acme"]


async def test_uses_of_a_secret_are_counted_across_a_rotation(managed_inbox: MakeInbox, rows: Rows) -> None:
    inbox = managed_inbox()
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe"})
        await see_changes(inbox)
        await delivery_status(inbox, "acme", FIRST, "a")
        await changes.rotate("acme", SECOND)
        await see_changes(inbox)
        await delivery_status(inbox, "acme", FIRST, "b")
    assert rows("SELECT source, verified FROM webhook_secrets") == [("acme", 2)]


async def test_forward_of_a_managed_source_is_replaced_with_it(managed_inbox: MakeInbox) -> None:
    inbox = managed_inbox()
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        origins = []
        for number in range(2):
            forward = f"https://target{number}.example/hooks"
            await changes.add("acme", [FIRST], {"provider": "stripe", "forward": forward, "forward_secret": SIGNING})
            await see_changes(inbox)
            handler = inbox._runtime.handlers.find("acme", "invoice.paid")
            assert handler is not None
            origins.append(handler.forwards_to)
            await changes.remove("acme")
            await see_changes(inbox)
        assert origins == ["https://target0.example", "https://target1.example"]
        assert "acme" in inbox._runtime.horizons, "the events of a removed source are still pruned"


async def test_settings_of_serial_order_apply_to_a_managed_source(managed_inbox: MakeInbox) -> None:
    inbox = managed_inbox()
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        settings = {"provider": "stripe", "serial_by": "object_id", "serial_failed": "skip"}
        await changes.add("acme", [FIRST], settings)
        await see_changes(inbox)
        assert inbox._runtime.skip_failed == {"acme"}


async def test_running_inbox_prunes_the_events_of_a_new_source_by_its_newest_settings(
    managed_inbox: MakeInbox, database: str, rows: Rows
) -> None:
    """Were the first window still used, a duplicate of an event that was pruned early would be handled again."""
    inbox = managed_inbox(worker=True)
    async with inbox.lifespan(), operator(managed_inbox()) as changes:
        loop = inbox._runtime._background._prune_loop
        assert loop is not None
        for window, event_id in (("40d", "evt_1"), ("60d", "evt_2")):
            await changes.add("acme", [FIRST], {"provider": "stripe", "dedupe_window": window})
            await see_changes(inbox)
            await claim(inbox, event_id, source="acme")
            set_age(database, event_id, 50, "processed")
            await loop.prune_once()
            await changes.remove("acme")
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_2",)]


async def test_start_fails_before_any_work_if_a_managed_source_outlives_the_keys_of_effects(
    managed_inbox: MakeInbox,
) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe", "dedupe_window": "90d"})
    inbox = managed_inbox(worker=True, effect_retention="40d")
    with pytest.raises(ConfigurationError, match=r"effect_retention is 40d: .* the minimum is 90d"):
        await inbox.start()
    assert inbox._runtime.worker is None and not inbox._runtime._store_is_open


async def test_events_of_a_managed_source_are_pruned_also_after_its_removal_and_without_a_key(
    managed_inbox: MakeInbox, make_inbox: MakeInbox
) -> None:
    async with operator(managed_inbox()) as changes:
        await changes.add("acme", [FIRST], {"provider": "stripe", "dedupe_window": "40d"})
        await changes.add("gone", [FIRST], {"provider": "stripe"})
        await changes.remove("gone")
        settings = make_inbox()._runtime.settings
        found = {row.source: row.receipts for row in await managed_horizons(changes.store, {}, settings)}
    assert found == {"acme": 40 * 86400.0, "gone": 30 * 86400.0}
    assert await make_inbox().prune(dry_run=True) is not None
