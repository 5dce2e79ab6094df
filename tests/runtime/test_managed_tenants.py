"""Managed tenants: a running inbox verifies with the secrets of the table, and notices each change."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.runtime import managed_tenants
from tests.support.events import Rows
from tests.support.managed import FIRST, KEY, SECOND, delivery_status, operator, see_changes, tenant_operator

pytestmark = pytest.mark.anyio

MakeInbox = Callable[..., Inbox]


@pytest.fixture
def tenant_inbox(make_inbox: MakeInbox) -> MakeInbox:
    """An inbox whose source `stripe` has managed tenants, not started."""

    def make(**settings: object) -> Inbox:
        inbox = make_inbox(**{"keys": [KEY], **settings})
        inbox.source("stripe", tenants=True)
        return inbox

    return make


async def test_tenant_is_received_rotated_and_removed_without_a_restart(tenant_inbox: MakeInbox, rows: Rows) -> None:
    inbox = tenant_inbox()
    async with inbox.lifespan(), tenant_operator(tenant_inbox(), "stripe") as changes:
        assert await delivery_status(inbox, "stripe/acme", FIRST) == 404
        await changes.add("acme", [FIRST])
        await changes.add("globex", [SECOND])
        await see_changes(inbox)
        assert await delivery_status(inbox, "stripe/acme", FIRST) == 202
        assert await delivery_status(inbox, "stripe/acme", SECOND) == 401, "that is the secret of another tenant"
        assert await delivery_status(inbox, "stripe/globex", SECOND, "evt_globex") == 202
        await changes.rotate("acme", SECOND)
        await see_changes(inbox)
        both = [await delivery_status(inbox, "stripe/acme", secret, secret) for secret in (FIRST, SECOND)]
        assert both == [202, 202]
        await changes.finish("acme")
        await see_changes(inbox)
        assert await delivery_status(inbox, "stripe/acme", FIRST) == 401
        await changes.remove("acme")
        await see_changes(inbox)
        assert await delivery_status(inbox, "stripe/acme", SECOND) == 404
        assert await delivery_status(inbox, "stripe/globex", SECOND, "evt_globex") == 200
    stored = rows("SELECT tenant, secrets FROM webhook_tenants ORDER BY tenant")
    assert stored[0] == ("acme", "") and "whsec" not in stored[1][1]


async def test_all_tenants_are_forgotten_after_many_changes(
    tenant_inbox: MakeInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_tenants, "MAX_DISCARDED", 2)
    inbox = tenant_inbox()
    async with inbox.lifespan(), tenant_operator(tenant_inbox(), "stripe") as changes:
        names = [f"t{n}" for n in range(5)]
        for name in names:
            assert await delivery_status(inbox, f"stripe/{name}", FIRST) == 404
            await changes.add(name, [FIRST])
        await see_changes(inbox)
        assert [await delivery_status(inbox, f"stripe/{name}", FIRST, name) for name in names] == [202] * 5


async def test_managed_source_may_have_managed_tenants(make_inbox: MakeInbox) -> None:
    inbox, other = make_inbox(keys=[KEY]), make_inbox(keys=[KEY])
    async with inbox.lifespan(), operator(other) as sources:
        await sources.add("shop", [], {"provider": "stripe", "tenants": True})
        async with tenant_operator(other, "shop") as changes:
            await changes.add("acme", [FIRST])
        await see_changes(inbox)
        assert await delivery_status(inbox, "shop/acme", FIRST) == 202
        await sources.remove("shop")
        await see_changes(inbox)
        assert await delivery_status(inbox, "shop/acme", FIRST) == 404


async def test_row_that_cannot_be_used_leaves_the_tenants_of_its_source(make_inbox: MakeInbox, rows: Rows) -> None:
    inbox, other = make_inbox(keys=[KEY]), make_inbox(keys=[KEY])
    async with inbox.lifespan(), operator(other) as sources:
        await sources.add("shop", [], {"provider": "stripe", "tenants": True})
        async with tenant_operator(other, "shop") as changes:
            await changes.add("acme", [FIRST])
        await see_changes(inbox)
        rows("UPDATE webhook_revisions SET number = number + 1")
        revision = "(SELECT number FROM webhook_revisions)"
        rows(f'UPDATE webhook_sources SET settings = \'{{"provider": "gone"}}\', revision = {revision}')
        await see_changes(inbox)
        assert await delivery_status(inbox, "shop/acme", FIRST) == 202
