"""Large deliveries: verified in a thread, taken as small ones are, and bounded while they wait."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest

from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.model.receipt import Filter
from oncehook.providers.families.each import MOST_ELEMENTS
from oncehook.receiver.verification import VerificationThread
from tests.receiver.test_every_provider import door
from tests.support.providers import NOW, Sender, changed, sender

pytestmark = pytest.mark.anyio


def _large_github(one: Sender) -> Delivery:
    genuine = one.compose()
    event = msgspec.json.decode(genuine.body) | {"commits": ["a" * 1000] * 20_000}
    return one.resend(genuine, now=NOW, body=msgspec.json.encode(event))


def _large_mandrill(one: Sender) -> Delivery:
    """Events in a form of 6 MB, of which most is escapes."""
    message = {"_id": "m", "html": '<p class="a">"&"</p>' * 20}
    events = [{"event": "open", "_id": f"m{i}", "ts": 1_800_000_000, "msg": message} for i in range(2500)]
    form = urlencode({"mandrill_events": msgspec.json.encode(events)}).encode()
    return one.resend(one.compose(), now=NOW, body=form)


def _large_graph(one: Sender) -> Delivery:
    genuine = one.compose()
    return changed(genuine, body=_repeated(genuine.body, "value", MOST_ELEMENTS))


def _repeated(body: bytes, path: str, times: int) -> bytes:
    parsed = msgspec.json.decode(body)
    first = parsed[path][0] | {"padding": "a" * 300}
    return msgspec.json.encode(parsed | {path: [first | {"id": f"n{i}"} for i in range(times)]})


@pytest.mark.parametrize(
    ("name", "make", "events"),
    [("github", _large_github, 1), ("mandrill", _large_mandrill, 2500), ("microsoft-graph", _large_graph, 1000)],
)
async def test_a_large_delivery_is_accepted_and_then_a_duplicate(
    name: str, make: Callable[[Sender], Delivery], events: int, tmp_path: Path
) -> None:
    one = sender(name)
    delivery = make(one)
    assert len(delivery.body) > LARGE
    async with door(tmp_path, one) as here:
        first, second = await here.send(delivery), await here.send(delivery)
        assert (first.status_code, second.status_code) == (202, 200)
        assert len(await here.inbox._runtime.store.receipts.find(Filter(), limit=3000)) == events


@pytest.mark.parametrize(("name", "path"), [("microsoft-graph", "value"), ("adyen", "notificationItems")])
def test_more_elements_than_a_delivery_may_have_are_rejected(name: str, path: str) -> None:
    one = sender(name)
    genuine, verifier = one.compose(), one.source().verifier
    assert verifier is not None
    first = msgspec.json.decode(genuine.body)[path][0]
    most, more = (msgspec.json.encode({path: [first] * times}) for times in (MOST_ELEMENTS, MOST_ELEMENTS + 1))
    assert verifier.verify(changed(genuine, body=most), NOW) == 0
    with pytest.raises(Rejected, match="bad_signature"):
        verifier.verify(changed(genuine, body=more), NOW)


async def test_a_small_body_is_verified_in_the_loop_and_a_large_one_beside_it() -> None:
    verifying = VerificationThread(limit_bytes=2**20)

    def thread(delivery: Delivery) -> str:
        return threading.current_thread().name

    assert await verifying.run(Delivery(b"a" * LARGE), thread) == threading.current_thread().name
    assert (await verifying.run(Delivery(b"a" * (LARGE + 1)), thread)).startswith("oncehook-verify")


async def test_large_bodies_wait_one_behind_the_other_up_to_a_number_of_bytes() -> None:
    size = LARGE + 1
    verifying = VerificationThread(limit_bytes=2 * size)
    free, running = threading.Event(), []

    def work(delivery: Delivery) -> int:
        running.append(delivery)
        assert free.wait(30)
        return len(running)

    first = asyncio.create_task(verifying.run(Delivery(b"a" * size), work))
    second = asyncio.create_task(verifying.run(Delivery(b"a" * size), work))
    while not running:
        await asyncio.sleep(0.001)
    with pytest.raises(Unavailable, match="wait to be verified"):
        await verifying.run(Delivery(b"a" * size), work)
    assert len(running) == 1, "the second waits for the first"
    free.set()
    assert [await first, await second] == [1, 2]
    assert await verifying.run(Delivery(b"a" * size * 3), work) == 3, "one alone may have any size"
