"""Every provider through the door: accepted, a duplicate, forged, lost on its way, and its handshake, with the rows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncehook import Inbox
from oncehook.concurrency.clock import Clock
from oncehook.model.delivery import Delivery
from oncehook.model.receipt import Filter
from oncehook.web.app import Service
from tests.support.providers import NOW, OPTIONS, PUBLIC_URL, SENDERS, Sender, changed, sender
from tests.support.servers import sqlite_file

pytestmark = pytest.mark.anyio
every = pytest.mark.parametrize("sender", SENDERS, ids=str)


class Then(Clock):
    """A clock that stands where the test's signatures were made."""

    def now(self) -> float:
        return NOW


class Door:
    """A running inbox with one source, as its sender sees it."""

    def __init__(self, inbox: Inbox, client: httpx.AsyncClient) -> None:
        self.inbox = inbox
        self.client = client

    async def send(self, delivery: Delivery, query: str = "", method: str = "POST") -> httpx.Response:
        headers = [(name, value) for name, value in delivery.headers.items()]
        return await self.client.request(method, f"/webhooks/here{query}", content=delivery.body, headers=headers)

    async def receipts(self) -> int:
        return len(await self.inbox._runtime.store.receipts.find(Filter(), limit=100))


@asynccontextmanager
async def door(folder: Path, sender: Sender, **settings: Any) -> AsyncIterator[Door]:
    inbox = Inbox(sqlite_file(folder / "inbox.db"), worker=False, clock=Then())
    given = {name: OPTIONS[name] for name in sender.provider.options}
    inbox.source("here", provider=sender.provider.name, **{"secrets": [sender.pair().verifying], **given, **settings})
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
    ):
        yield Door(inbox, client)


@every
async def test_the_first_delivery_is_accepted_and_the_second_is_a_duplicate(sender: Sender, tmp_path: Path) -> None:
    delivery = sender.compose()
    events = len(sender.source().read(delivery, sender.source().parse(delivery)))
    answer = sender.provider.answer
    async with door(tmp_path, sender) as here:
        first, second = await here.send(delivery), await here.send(delivery)
        each_counts = sender.provider.event.id == "new:delivery"
        assert first.status_code == (answer.status or 202)
        assert second.status_code == (answer.status or (202 if each_counts else 200))
        if answer.body is not None:
            assert first.text == second.text == answer.body
        assert await here.receipts() == (2 * events if each_counts else events)


@pytest.mark.parametrize("name", ["mailjet", "cloudevents"])
async def test_a_body_that_is_one_event_where_it_could_be_many_is_told_about_as_one(name: str, tmp_path: Path) -> None:
    one = sender(name)
    delivery = one.compose()
    if name == "mailjet":
        delivery = changed(delivery, body=b'{"event":"open","time":1800000000,"MessageID":1,"email":"a@example.com"}')
    async with door(tmp_path, one) as here:
        answer = (await here.send(delivery)).json()
        assert answer["status"] == "accepted" and answer["receipt"] and answer["event_id"]


@every
async def test_a_forged_delivery_is_401_and_leaves_no_row(sender: Sender, tmp_path: Path) -> None:
    forged = sender.compose(number=1)
    async with door(tmp_path, sender) as here:
        assert (await here.send(forged)).status_code == 401
        unsigned = changed(forged, {b"content-type": forged.headers[b"content-type"]}, body=b'{"id":"1","type":"t"}')
        assert (await here.send(unsigned)).status_code == 401
        assert await here.receipts() == 0


@every
async def test_another_method_is_405_and_leaves_no_row(sender: Sender, tmp_path: Path) -> None:
    async with door(tmp_path, sender) as here:
        for method in {"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} - {one.method for one in sender.provider.handshakes}:
            answer = await here.send(sender.compose(), method=method)
            assert answer.status_code == 405 and "POST" in answer.headers["allow"]
        for handshake in sender.provider.handshakes:
            if handshake.method == "GET":  # without what tells it from any other request
                assert (await here.send(Delivery(b""), method="GET")).status_code == 405
        assert await here.receipts() == 0


@every
async def test_headers_of_a_proxy_change_nothing(sender: Sender, tmp_path: Path) -> None:
    """The address that is signed is the configured one, whatever a stranger says that it is."""
    delivery = sender.compose()
    claimed = {
        b"x-forwarded-host": b"evil.example",
        b"x-forwarded-proto": b"http",
        b"forwarded": b"host=evil.example;proto=http",
        b"x-original-url": b"/other",
        b"host": b"evil.example",
    }
    async with door(tmp_path, sender) as here:
        answer = await here.send(changed(delivery, {**delivery.headers, **claimed}))
        assert answer.status_code in (sender.provider.answer.status or 202, 202)


SIGNING_THE_ADDRESS = [one for one in SENDERS if "public_url" in one.provider.options]


@pytest.mark.parametrize("sender", SIGNING_THE_ADDRESS, ids=str)
async def test_another_public_address_or_query_is_refused(sender: Sender, tmp_path: Path) -> None:
    async with door(tmp_path, sender, public_url=PUBLIC_URL + "x") as here:
        assert (await here.send(sender.compose())).status_code == 401
    (tmp_path / "again").mkdir()
    async with door(tmp_path / "again", sender) as here:
        assert (await here.send(sender.compose(), query="?added=1")).status_code == 401
        assert (await here.send(sender.compose())).status_code in (202, 200)
