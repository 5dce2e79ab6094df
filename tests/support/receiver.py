"""Running inboxes with the sources of a test, behind the service, as a sender reaches them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from oncehook import Inbox
from oncehook.concurrency.clock import Clock
from oncehook.model.delivery import Delivery
from oncehook.model.receipt import Filter
from oncehook.providers.certificates import Certificates, Fetch
from oncehook.web.app import Service
from tests.support.providers import NOW, OPTIONS, Sender
from tests.support.servers import sqlite_file


class FrozenClock(Clock):
    """A clock that shows the time at which the signatures of the tests were made."""

    def now(self) -> float:
        return NOW


class SourceClient:
    """Sends deliveries to the source `here` of a running inbox."""

    def __init__(self, inbox: Inbox, client: httpx.AsyncClient) -> None:
        self.inbox = inbox
        self.client = client

    async def send(self, delivery: Delivery, query: str = "", method: str = "POST") -> httpx.Response:
        headers = [(name, value) for name, value in delivery.headers.items()]
        return await self.client.request(method, f"/webhooks/here{query}", content=delivery.body, headers=headers)

    async def receipts(self) -> int:
        """The number of receipts in the inbox."""
        return len(await self.inbox._runtime.store.receipts.find(Filter(), limit=100))


@asynccontextmanager
async def serving_source(folder: Path, sender: Sender, **settings: Any) -> AsyncIterator[SourceClient]:
    """Run an inbox with the source `here` of this sender's provider."""
    inbox = Inbox(sqlite_file(folder / "inbox.db"), worker=False, clock=FrozenClock())
    options = {name: OPTIONS[name] for name in sender.provider.options}
    inbox.source("here", provider=sender.provider.name, **{"secrets": [sender.pair().verifying], **options, **settings})
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
    ):
        yield SourceClient(inbox, client)


@asynccontextmanager
async def serving_handshakes(
    folder: Path, fetch: Fetch | None = None, **sources: dict[str, Any]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service with these sources. At the end of the block, there must be no receipt."""
    certificates = Certificates() if fetch is None else Certificates(fetch=fetch)
    inbox = Inbox(f"sqlite:///{folder / 'inbox.db'}", certificates=certificates, clock=FrozenClock())
    for name, settings in sources.items():
        inbox.source(name, **settings)
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
    ):
        yield client
        receipts = await inbox._runtime.store.receipts.find(Filter(), limit=10)
        assert receipts == [], "a handshake must leave no receipt"
