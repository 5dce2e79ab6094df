"""Keys: the check at the start of an inbox, and rotations, also under load."""

import asyncio
import json
from collections.abc import Callable

import psycopg
import pytest

from oncehook import ConfigurationError, Event, Fail, Inbox
from oncehook.config.keyring import KeyMissing, KeyRing, read_keys
from oncehook.operations import keys
from oncehook.operations.keys import abandon, rotate
from oncehook.store import encrypted_rows
from oncehook.testing import deliver
from tests.support.encryption import encrypted_inbox, ring
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually
from tests.support.work import QUICK, receipts_are

pytestmark = pytest.mark.anyio


async def fill(make_inbox: Callable[..., Inbox], *ids: str, events: int = 3) -> None:
    """Store events that the first of these keys encrypts."""
    inbox = encrypted_inbox(make_inbox, *ids)
    async with inbox.lifespan():
        for number in range(events):
            await deliver(inbox, "stripe", stripe_body(f"evt_{ids[0]}_{number}"))


async def test_inbox_does_not_start_without_a_key_that_encrypted_rows(make_inbox: Callable[..., Inbox]) -> None:
    await fill(make_inbox, "2026a")
    for inbox in (encrypted_inbox(make_inbox, "2026b"), make_inbox()):
        with pytest.raises(ConfigurationError, match=r"rows that the key 2026a encrypted.*add it behind the key"):
            await inbox.start()
        assert not inbox._runtime.is_running
    await fill(make_inbox, "2026b", "2026a")


async def test_inbox_does_not_start_with_another_key_under_the_same_id(make_inbox: Callable[..., Inbox]) -> None:
    await fill(make_inbox, "2026a")
    inbox = make_inbox(keys=[ring("2026b")[0].replace("2026b", "2026a")])
    with pytest.raises(ConfigurationError, match=r"the key 2026a .* is not the one that encrypted the database"):
        await inbox.start()


async def test_key_that_encrypts_nothing_is_not_needed_later(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(keys=ring("2026a"))
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
    async with make_inbox().lifespan():
        pass


async def test_old_key_can_be_removed_after_a_rotation(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    await fill(make_inbox, "2026a")
    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")
    seen: list[tuple[str, int]] = []
    async with inbox.lifespan():
        done = await rotate(inbox._runtime.store, lambda part, number: seen.append((part, number)))
    assert (done.resealed, done.locked, dict(done.unreadable), done.removable) == (3, 0, {}, ["2026a"])
    assert ("payloads", 3) in seen
    assert rows("SELECT key_id FROM webhook_encryption_keys") == [("2026b",)]
    ((detail,),) = rows("SELECT detail FROM webhook_audit WHERE action = 'rotate_keys'")
    assert json.loads(detail) == {"key": "2026b", "rows": 3}
    handled = await handle_all(encrypted_inbox(make_inbox, "2026b"))
    assert handled == [f"evt_2026a_{number}" for number in range(3)]


async def handle_all(inbox: Inbox) -> list[str]:
    """Start an inbox with a worker, and return the ids of the events that it handled."""
    handled: list[str] = []

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        assert event["id"] == event.id
        handled.append(event.id)

    async with inbox.lifespan():
        inbox._runtime.start_worker()
        await eventually(lambda: len(handled) == 3, "all events are handled")
    return sorted(handled)


async def test_interrupted_rotation_continues_with_the_rows_that_are_left(
    make_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encrypted_rows, "PAGE", 2)
    await fill(make_inbox, "2026a", events=9)

    def interrupt(part: str, resealed: int) -> None:
        raise KeyboardInterrupt

    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")
    async with inbox.lifespan():
        for number in range(1, 4):
            with pytest.raises(KeyboardInterrupt):
                await rotate(inbox._runtime.store, interrupt)
            assert rows("SELECT count(*) FROM webhook_payloads WHERE key_id = '2026b'") == [(2 * number,)]
        assert rows("SELECT key_id FROM webhook_encryption_keys ORDER BY key_id") == [("2026a",), ("2026b",)]
        assert (await rotate(inbox._runtime.store)).resealed == 3
    assert rows("SELECT DISTINCT key_id FROM webhook_payloads") == [("2026b",)]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)  # on SQLite, a writer locks the whole file
async def test_rotation_leaves_out_a_row_that_is_locked_and_reports_it(
    make_inbox: Callable[..., Inbox], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_PASSES", 2)
    await fill(make_inbox, "2026a", events=3)
    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")
    async with inbox.lifespan():
        with psycopg.connect(database) as other:
            other.execute(
                "SELECT FROM webhook_payloads WHERE receipt_id = (SELECT min(id) FROM webhook_receipts) FOR UPDATE"
            )
            done = await rotate(inbox._runtime.store)
            assert (done.resealed, done.locked, done.removable) == (2, 1, [])
        done = await rotate(inbox._runtime.store)
        assert (done.resealed, done.locked, done.removable) == (1, 0, ["2026a"])


async def test_key_that_another_process_used_during_the_rotation_is_not_removable(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    """The process has the keys in the old order, and stores a payload after the rotation of the payloads."""
    await fill(make_inbox, "2026a")
    last = "(SELECT max(id) FROM webhook_receipts)"
    rows(f"CREATE TABLE written_later AS SELECT * FROM webhook_payloads WHERE receipt_id = {last}")
    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")
    later: list[str] = []

    def write_later(part: str, number: int) -> None:
        if part != "payloads" and not later:
            later.append(part)
            rows("DELETE FROM webhook_payloads WHERE receipt_id = (SELECT receipt_id FROM written_later)")
            rows("INSERT INTO webhook_payloads SELECT * FROM written_later")

    async with inbox.lifespan():
        done = await rotate(inbox._runtime.store, write_later)
        assert (done.resealed, done.locked, done.removable) == (3, 0, [])
        assert sorted(rows("SELECT key_id FROM webhook_encryption_keys")) == [("2026a",), ("2026b",)]
        again = await rotate(inbox._runtime.store)
    assert later and (again.resealed, again.removable) == (1, ["2026a"])


async def test_key_that_encrypts_stays_known_if_a_rotation_finds_no_rows(make_inbox: Callable[..., Inbox]) -> None:
    inbox = encrypted_inbox(make_inbox, "2026a")
    async with inbox.lifespan():
        await rotate(inbox._runtime.store)
        await deliver(inbox, "stripe", stripe_body("evt_1"))
    with pytest.raises(ConfigurationError, match="rows that the key 2026a encrypted"):
        await make_inbox().start()


async def test_rotation_without_an_old_key_says_which_rows_it_left(make_inbox: Callable[..., Inbox]) -> None:
    await fill(make_inbox, "2026a", events=2)
    await fill(make_inbox, "2026b", "2026a", events=1)
    inbox = encrypted_inbox(make_inbox, "2026c", "2026b", "2026a")
    async with inbox.lifespan():
        store = inbox._runtime.store
        store._keys = read_keys(ring("2026c", "2026b"))
        done = await rotate(store)
        assert (done.resealed, dict(done.unreadable), done.removable) == (1, {"2026a": 2}, ["2026b"])
        assert {key.key_id for key in await store.encrypted_rows.registered()} == {"2026a", "2026c"}


async def test_rotation_needs_a_key_that_is_not_another_one(make_inbox: Callable[..., Inbox]) -> None:
    await fill(make_inbox, "2026a")
    inbox = encrypted_inbox(make_inbox, "2026a")
    async with inbox.lifespan():
        store = inbox._runtime.store
        store._keys = KeyRing()
        with pytest.raises(KeyMissing, match="`oncehook keys generate` prints one"):
            await rotate(store)
        store._keys = read_keys([ring("2026b")[0].replace("2026b", "2026a")])
        with pytest.raises(ConfigurationError, match="is not the one that encrypted"):
            await rotate(store)


async def test_rotation_under_load_loses_nothing(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    """One process still encrypts with the old key, another with the new one, and rotations run all the time."""
    old, new = encrypted_inbox(make_inbox, "2026a", "2026b"), encrypted_inbox(make_inbox, "2026b", "2026a")
    handled: list[str] = []

    @new.on("stripe", "*", retry=QUICK)
    async def handle(event: Event) -> None:
        if event.attempt == 1 and event.id.endswith("3"):
            raise ConnectionError(event["id"])
        assert event["id"] == event.id
        handled.append(event.id)

    async def send(inbox: Inbox, name: str) -> None:
        for number in range(60):
            response = await deliver(inbox, "stripe", stripe_body(f"evt_{name}_{number}"))
            assert response.status == 202

    async with old.lifespan(), new.lifespan():
        new._runtime.start_worker()
        senders = asyncio.gather(send(old, "old"), send(new, "new"))
        rotations = 0
        while not senders.done():
            assert not (await rotate(new._runtime.store)).unreadable
            rotations += 1
        await senders
        await eventually(receipts_are(rows, "processed", 120))
        done = await rotate(new._runtime.store)
    assert rotations > 1 and not done.unreadable and done.locked == 0
    assert sorted(handled) == sorted(f"evt_{name}_{number}" for name in ("old", "new") for number in range(60))
    assert rows("SELECT DISTINCT key_id FROM webhook_payloads") == [("2026b",)]
    async with encrypted_inbox(make_inbox, "2026b").lifespan():
        pass


async def test_values_of_a_lost_key_can_be_erased_so_that_the_inbox_starts(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    await fill(make_inbox, "2026a", events=2)
    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")
    async with inbox.lifespan():
        store = inbox._runtime.store
        with pytest.raises(ConfigurationError, match=r"the key 2026a is in keys .*`oncehook keys rotate` replaces it"):
            await abandon(store, "2026a", actor="jane")
        store._keys = read_keys(ring("2026b"))
        with pytest.raises(ConfigurationError, match=r"no row names the key 2026x: did you mean 2026a\?"):
            await abandon(store, "2026x", actor="jane")
        done = await abandon(store, "2026a", actor="jane")
        assert (done.payloads, done.texts, done.secrets) == (2, 0, 0)
    assert rows("SELECT count(*) FROM webhook_payloads") == [(0,)]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(2,)]
    assert rows("SELECT actor FROM webhook_audit WHERE action = 'abandon_key'") == [("jane",)]
    async with encrypted_inbox(make_inbox, "2026b").lifespan():
        pass


async def test_error_texts_and_arguments_of_a_lost_key_are_erased(
    make_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "BATCH", 2)
    inbox = encrypted_inbox(make_inbox, "2026a")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect(f"call:{event.id}", "https://example.com/", body=event.id)

    @inbox.on("stripe", "invoice.voided")
    async def voided(event: Event) -> None:
        raise Fail(event.id)

    async with inbox.lifespan():
        for number in range(3):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}a"))
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}b", "invoice.voided"))
        inbox._runtime.start_worker()
        await eventually(receipts_are(rows, "failed", 3))
        await eventually(receipts_are(rows, "processed", 3))
        await inbox._runtime.stop_work()
        store = inbox._runtime.store
        store._keys = read_keys(ring("2026b"))
        done = await abandon(store, "2026a", actor="jane")
        assert done.payloads == 6 and await store.encrypted_rows.counts() == []
    assert rows("SELECT DISTINCT last_error FROM webhook_receipts WHERE status = 'failed'") == [("(erased)",)]
    assert rows("SELECT DISTINCT error, traceback FROM webhook_past_attempts") == [("(erased)", None)]
    assert rows("SELECT DISTINCT args FROM webhook_effects") == [(None,)]
