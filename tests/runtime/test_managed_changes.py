"""Changes of operators to managed sources: refusals, audit entries, and two operators at the same time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Event, Inbox
from oncehook.config.managed_secrets import open_secrets, source_context
from oncehook.model.errors import ConfigurationError
from oncehook.runtime.managed_changes import SourceChanges, later
from oncehook.runtime.tenant_changes import TenantChanges
from tests.support.events import Rows
from tests.support.managed import FIRST, KEY, SECOND, SIGNING, WRONG_KEY, operator

pytestmark = pytest.mark.anyio

STRIPE = {"provider": "stripe"}


@pytest.fixture
async def changes(make_inbox: Callable[..., Inbox]) -> AsyncIterator[SourceChanges]:
    """An operator, next to a source `stripe` in code."""
    inbox = make_inbox(keys=[KEY])
    inbox.source("stripe", secrets=[FIRST])
    async with operator(inbox) as changes:
        yield changes


async def test_every_change_is_audited_without_the_secret(changes: SourceChanges, rows: Rows) -> None:
    await changes.add("acme", [FIRST], {**STRIPE, "verify_token": "token-value"})
    await changes.rotate("acme", SECOND, grace=60)
    await changes.finish("acme")
    await changes.remove("acme")
    audited = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    assert [(actor, action) for actor, action, _ in audited] == [
        ("jane", action) for action in ("add_source", "rotate_source", "finish_rotation", "remove_source")
    ]
    added, rotated, finished, removed = (json.loads(detail) for *_, detail in audited)
    assert added["provider"] == "stripe" and len(added["secrets"]) == len(finished["secrets"]) == 1
    assert rotated["secrets"][1] == added["secrets"][0] and rotated["grace_seconds"] == 60
    assert removed == {"source": "acme"}
    assert not any(value in str(audited) for value in (FIRST, SECOND, "token-value"))


async def test_audit_names_the_settings_and_hides_the_encrypted_ones(changes: SourceChanges, rows: Rows) -> None:
    await changes.add("acme", [], {"provider": "stripe", "verify": "none", "forward": "https://example.com/token"})
    ((detail,),) = rows("SELECT detail FROM webhook_audit")
    added = json.loads(detail)
    assert added["settings"] == {"verify": "none"} and added["encrypted_settings"] == ["forward"]
    assert "example.com" not in detail


async def test_removed_source_takes_its_tenants_with_it(changes: SourceChanges, rows: Rows) -> None:
    for name in ("acme", "other"):
        await changes.add(name, [], {**STRIPE, "tenants": True})
    await changes.runtime.managed_sources.load(changes.store)
    for name in ("acme", "other"):
        await TenantChanges(changes.runtime, changes.store, "jane", name).add("t1", [FIRST])
    await changes.remove("acme")
    left = rows("SELECT source, secrets <> '', removed_at IS NULL FROM webhook_tenants ORDER BY source")
    assert [tuple(map(bool, row[1:])) for row in left] == [(False, False), (True, True)]
    query = "SELECT r.number, t.revision FROM webhook_revisions r, webhook_tenants t WHERE source = 'acme'"
    ((number, revision),) = rows(query)
    assert number == revision, "every process forgets the tenants"


async def test_change_with_another_key_under_the_same_id_is_refused(
    changes: SourceChanges, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    await changes.add("acme", [FIRST], STRIPE)
    wrong = make_inbox(keys=[WRONG_KEY])._runtime
    async with wrong.opened_store() as store:
        await wrong.managed_sources.load(store, needs_keys=False)
        with pytest.raises(ConfigurationError, match=r"the key test in .* is not the one"):
            await SourceChanges(wrong, store, "jane").add("other", [FIRST], STRIPE)
    assert rows("SELECT name FROM webhook_sources") == [("acme",)]


async def test_row_holds_no_secret_and_a_removed_row_holds_nothing(changes: SourceChanges, rows: Rows) -> None:
    private = {"verify_token": "token-value", "forward": "https://target.example/secret", "forward_secret": SIGNING}
    await changes.add("acme", [FIRST], {**STRIPE, "types": ["invoice.*"], **private})
    ((settings, secrets, actor),) = rows("SELECT settings, secrets, actor FROM webhook_sources")
    assert json.loads(settings) == {"provider": "stripe", "types": ["invoice.*"]} and actor == "jane"
    assert secrets.startswith("oncehook:aesgcm:test:")
    await changes.remove("acme")
    ((secrets, is_removed),) = rows("SELECT secrets, removed_at IS NOT NULL FROM webhook_sources")
    assert secrets == "" and is_removed


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("name", "secrets", "settings", "message"),
    [
        ("stripe", [FIRST], {}, "in the configuration or in code: choose another name"),
        ("Acme", [FIRST], STRIPE, "lower-case letters"),
        ("acme", [FIRST], {"provider": "strpe"}, "did you mean stripe"),
        ("acme", [FIRST], {**STRIPE, "tolerence": "5m"}, "did you mean sources.acme.tolerance"),
        ("acme", [FIRST], {**STRIPE, "mode": "later"}, "sources.acme.mode"),
        ("acme", [], STRIPE, "secrets is empty"),
        ("acme", ["env:SECRET"], STRIPE, "stored by value"),
        ("acme", [FIRST], {**STRIPE, "verify_token": "file:/etc/passwd"}, "verify_token"),
        ("acme", [FIRST], {**STRIPE, "forward": "ftp://x"}, "forward is not usable"),
        ("acme", [FIRST], {**STRIPE, "email": True}, "has no email events"),
        ("acme", [FIRST], {**STRIPE, "dedupe_window": "1h"}, "dedupe_window"),
    ],
)
async def test_source_that_could_not_be_used_is_refused(
    changes: SourceChanges, rows: Rows, name: str, secrets: list[str], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        await changes.add(name, secrets, settings)
    assert FIRST not in str(refused.value)
    assert rows("SELECT count(*) FROM webhook_sources") == [(0,)]


async def test_source_that_keeps_events_longer_than_the_keys_of_effects_is_refused(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    """Else no process with a worker could start any more, also after the removal: the events may still be there."""
    inbox = make_inbox(keys=[KEY], effect_retention="40d")
    async with operator(inbox) as changes:
        with pytest.raises(ConfigurationError, match=r"effect_retention is 40d: .* the minimum is 90d"):
            await changes.add("acme", [FIRST], {**STRIPE, "dedupe_window": "90d"})
        await changes.add("acme", [FIRST], {**STRIPE, "dedupe_window": "40d"})
    assert rows("SELECT name FROM webhook_sources") == [("acme",)]


async def test_forward_of_a_source_with_a_handler_is_refused(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(keys=[KEY])

    @inbox.on("acme", "*")
    async def any_event(event: Event) -> None: ...

    async with operator(inbox) as changes:
        with pytest.raises(ConfigurationError, match="any_event already handles"):
            await changes.add("acme", [FIRST], {**STRIPE, "forward": "https://target.example"})


async def test_unknown_and_existing_names_are_refused_with_a_hint(changes: SourceChanges) -> None:
    await changes.add("acme", [FIRST], STRIPE)
    with pytest.raises(ConfigurationError, match="there is a source acme already: rotate"):
        await changes.add("acme", [FIRST], STRIPE)
    with pytest.raises(ConfigurationError, match="in the configuration or in code: change it there"):
        await changes.rotate("stripe", SECOND)


async def test_unknown_name_gets_the_nearest_managed_one(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(keys=[KEY])
    async with operator(inbox) as changes:
        await changes.add("acme", [FIRST], STRIPE)
    async with operator(inbox) as changes:
        for change in (changes.remove("acne"), changes.finish("acne"), changes.rotate("acne", SECOND)):
            with pytest.raises(ConfigurationError, match="did you mean acme"):
                await change
        await changes.remove("acme")
        with pytest.raises(ConfigurationError, match="there is no managed source acme"):
            await changes.remove("acme")


async def test_change_without_a_key_is_refused(make_inbox: Callable[..., Inbox]) -> None:
    async with operator(make_inbox()) as changes:
        for change in (changes.add("acme", [FIRST], STRIPE), changes.rotate("acme", SECOND), changes.finish("acme")):
            with pytest.raises(ConfigurationError, match="oncehook keys generate"):
                await change


async def test_rotation_to_an_unusable_secret_is_refused(changes: SourceChanges, rows: Rows) -> None:
    await changes.add("hooks", [SIGNING], {"provider": "standard-webhooks"})
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await changes.rotate("hooks", "whsec_!!!")
    assert rows("SELECT revision FROM webhook_sources") == [(1,)]


async def test_two_operators_who_rotate_at_the_same_time_keep_both_secrets(
    changes: SourceChanges, make_inbox: Callable[..., Inbox]
) -> None:
    await changes.add("acme", [FIRST], STRIPE)
    async with operator(make_inbox(keys=[KEY]), "joe") as other:
        new = [f"whsec_{n}" for n in range(6)]
        await asyncio.gather(*(who.rotate("acme", value) for who, value in zip((changes, other) * 3, new, strict=True)))
        (row,) = await other.store.directory.sources()
    secrets = open_secrets(changes.store.keys, row.secrets, source_context("acme"))
    assert {secret.value for secret in secrets.active(row.now)} == {FIRST, *new}
    assert row.revision == 7


async def test_two_operators_who_add_the_same_name_get_one_source(
    changes: SourceChanges, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    async with operator(make_inbox(keys=[KEY]), "joe") as other:
        adding = (changes.add("acme", [FIRST], STRIPE), other.add("acme", [SECOND], STRIPE))
        results = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NameTaken", "NoneType"]
    assert rows("SELECT count(*), max(number) FROM webhook_sources, webhook_revisions") == [(1, 1)]


def test_time_is_moved_in_the_same_format() -> None:
    assert later("2026-11-16T23:59:59.500000Z", 0.5) == "2026-11-17T00:00:00.000000Z"
