"""Managed sources and tenants: a key ring, secrets, and changes as an operator makes them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from oncehook import Inbox
from oncehook.runtime.managed_changes import SourceChanges
from oncehook.runtime.tenant_changes import TenantChanges
from tests.support.events import stripe_body, stripe_headers

KEY = "test:" + "A" * 43 + "="
WRONG_KEY = "test:" + "C" * 42 + "A="
"""Another key with the id of KEY."""

OTHER_KEY = "other:" + "B" * 42 + "A="
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FIRST, SECOND, THIRD = "whsec_first_secret", "whsec_second_secret", "whsec_third_secret"


@asynccontextmanager
async def operator(inbox: Inbox, actor: str = "jane") -> AsyncIterator[SourceChanges]:
    """Changes of managed sources by another process than the inbox that runs."""
    async with inbox._runtime.opened_store() as store:
        await inbox._runtime.managed_sources.load(store)
        yield SourceChanges(inbox._runtime, store, actor)


@asynccontextmanager
async def tenant_operator(inbox: Inbox, source: str, actor: str = "jane") -> AsyncIterator[TenantChanges]:
    """Changes of the managed tenants of a source by another process than the inbox that runs."""
    async with operator(inbox, actor) as changes:
        yield TenantChanges(inbox._runtime, changes.store, actor, source)


async def delivery_status(
    inbox: Inbox, path: str, secret: str, event_id: str = "evt_1", now: float | None = None
) -> int:
    """The status of the response to a Stripe delivery, also to a source or tenant that this inbox does not have."""
    body = stripe_body(event_id)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(inbox), base_url="http://test") as client:
        response = await client.post(f"/{path}", content=body, headers=stripe_headers(body, secret, now=now))
        return response.status_code


async def see_changes(inbox: Inbox) -> None:
    """Let a running inbox notice a change now, instead of within a second."""
    await inbox._runtime.settings_watch.refresh()
