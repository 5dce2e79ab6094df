"""The receiver's step that publishes: what the sender gets, and what happens without a publisher."""

from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.delivery import Delivery
from oncehook.model.errors import IntakeFull
from oncehook.providers.source import Source
from oncehook.testing import deliver
from tests.support.events import STRIPE_SECRET
from tests.support.servers import sqlite_file

pytestmark = pytest.mark.anyio


class RecordingPublisher:
    """Publishes to a list, or not at all."""

    def __init__(self, answer: bool | Exception = True) -> None:
        self.answer = answer
        self.published: list[str] = []

    def prepare(self, delivery: Delivery) -> None:
        pass

    async def publish(self, source: Source, delivery: Delivery, verified_by: int) -> bool:
        self.published.append(source.name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def make_inbox(folder: Path, publisher: RecordingPublisher | None, **sources: str) -> Inbox:
    inbox = Inbox(sqlite_file(folder / "inbox.db"), worker=False)
    for name, secret in sources.items():
        inbox.source(name, secrets=[secret])
        inbox._runtime.sources[name].is_published = True
    inbox._runtime.reception.receiver.publisher = publisher
    return inbox


async def test_published_delivery_is_acked_without_a_receipt(tmp_path: Path) -> None:
    publisher = RecordingPublisher()
    inbox = make_inbox(tmp_path, publisher, stripe=STRIPE_SECRET)
    async with inbox.lifespan():
        response = await deliver(inbox, "stripe")
        assert response.outcome == (202, "accepted") and response.receipt is None
        assert publisher.published == ["stripe"]
        assert not [receipt async for receipt in inbox.events()]


async def test_published_batch_is_acked_with_its_number_of_events(tmp_path: Path) -> None:
    inbox = make_inbox(tmp_path, RecordingPublisher(), brevo="user:password")
    async with inbox.lifespan():
        assert (await deliver(inbox, "brevo")).status == 202


@pytest.mark.parametrize("publisher", [None, RecordingPublisher(False)], ids=["no publisher", "not published"])
async def test_delivery_that_was_not_published_is_claimed(tmp_path: Path, publisher: RecordingPublisher | None) -> None:
    inbox = make_inbox(tmp_path, publisher, stripe=STRIPE_SECRET)
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe")).receipt == 1


async def test_delivery_gets_503_if_too_many_bytes_wait_for_the_broker(tmp_path: Path) -> None:
    inbox = make_inbox(tmp_path, RecordingPublisher(IntakeFull("full", retry_after=2)), stripe=STRIPE_SECRET)
    async with inbox.lifespan():
        response = await deliver(inbox, "stripe")
        assert response.outcome == (503, "unavailable") and response.headers["retry-after"] == "2"


async def test_delivery_with_a_wrong_signature_is_not_published(tmp_path: Path) -> None:
    publisher = RecordingPublisher()
    inbox = make_inbox(tmp_path, publisher, stripe=STRIPE_SECRET)
    async with inbox.lifespan():
        response = await deliver(inbox, "stripe", secret="whsec_other")
        assert response.outcome == (401, "bad_signature") and publisher.published == []
