"""Changes of operators to managed tenants: refusals, audit entries, and how tenants are listed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.runtime.tenant_changes import TenantChanges, tenant_row
from tests.support.events import Rows
from tests.support.managed import FIRST, KEY, SECOND, operator, tenant_operator

pytestmark = pytest.mark.anyio


@pytest.fixture
async def changes(make_inbox: Callable[..., Inbox]) -> AsyncIterator[TenantChanges]:
    inbox = make_inbox(keys=[KEY])
    inbox.source("stripe", tenants=True)
    async with tenant_operator(inbox, "stripe") as changes:
        yield changes


async def test_every_change_is_audited_without_the_secret(changes: TenantChanges, rows: Rows) -> None:
    await changes.add("acme", [FIRST])
    await changes.rotate("acme", SECOND, grace=60)
    await changes.finish("acme")
    await changes.remove("acme")
    audited = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    actions = ["add_tenant", "rotate_tenant", "finish_rotation", "remove_tenant"]
    assert [(actor, action) for actor, action, _ in audited] == [("jane", action) for action in actions]
    assert all(json.loads(detail)["tenant"] == "acme" for *_, detail in audited)
    assert "whsec" not in str(audited)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "ä", "a" * 129, "a?b"])
async def test_name_that_is_no_part_of_a_url_is_refused(changes: TenantChanges, name: str) -> None:
    with pytest.raises(ConfigurationError, match="up to 128 letters"):
        await changes.add(name, [FIRST])


async def test_wrong_secrets_and_names_are_refused_with_a_hint(changes: TenantChanges, rows: Rows) -> None:
    with pytest.raises(ConfigurationError, match="needs a secret"):
        await changes.add("acme", [])
    with pytest.raises(ConfigurationError, match="stored by value"):
        await changes.add("acme", ["env:SECRET"])
    await changes.add("acme", [FIRST])
    with pytest.raises(ConfigurationError, match="has a tenant acme already: rotate"):
        await changes.add("acme", [SECOND])
    for change in (changes.remove("acne"), changes.finish("acne"), changes.rotate("acne", SECOND)):
        with pytest.raises(ConfigurationError, match="no managed tenant acne: did you mean acme"):
            await change
    with pytest.raises(ConfigurationError, match="list the tenants"):
        await changes.remove("zzz")
    assert rows("SELECT count(*), max(number) FROM webhook_tenants, webhook_revisions") == [(1, 1)]


async def test_source_without_managed_tenants_is_refused(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(keys=[KEY])
    inbox.source("stripe", secrets=[FIRST])
    inbox.source("github", secrets_for=lambda tenant: None)
    async with operator(inbox) as other:
        for name, message in (
            ("strpe", "did you mean stripe"),
            ("stripe", "tenants = true"),
            ("github", "secrets_for: change them there"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                TenantChanges(inbox._runtime, other.store, "jane", name)


async def test_change_without_a_key_is_refused(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", tenants=True)
    async with tenant_operator(inbox, "stripe") as changes:
        with pytest.raises(ConfigurationError, match="oncehook keys generate"):
            await changes.add("acme", [FIRST])


async def test_tenant_that_cannot_be_decrypted_is_listed_with_the_reason(changes: TenantChanges, rows: Rows) -> None:
    await changes.add("acme", [FIRST])
    await changes.add("globex", [FIRST])
    rows("UPDATE webhook_tenants SET secrets = (SELECT secrets FROM webhook_tenants WHERE tenant = 'acme')")
    listed = [tenant_row(changes.store.keys, row) for row in await changes.store.directory.tenants("stripe", limit=9)]
    assert [(row["tenant"], len(row["secrets"])) for row in listed] == [("acme", 1), ("globex", 0)]
    assert listed[0]["problem"] is None and "stripe/globex cannot be read" in listed[1]["problem"]


async def test_operators_who_rotate_at_the_same_time_keep_all_secrets(changes: TenantChanges) -> None:
    await changes.add("acme", [FIRST])
    await asyncio.gather(*(changes.rotate("acme", f"whsec_{n}") for n in range(5)))
    row = await changes.store.directory.tenant("stripe", "acme")
    assert row is not None
    listed = tenant_row(changes.store.keys, row)
    assert len(listed["secrets"]) == 6 and sum(secret["ends_at"] is None for secret in listed["secrets"]) == 1
    assert "whsec" not in json.dumps(listed)
