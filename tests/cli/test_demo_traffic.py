"""The demo's senders: signed samples, behaviors, and pauses for a check."""

import asyncio
import http.server
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from oncehook.cli.demo_check import USER_AGENT, ResponseLog
from oncehook.cli.demo_session import make_keys
from oncehook.cli.demo_traffic import BEHAVIORS, NOT_SENT_BY, SENDERS, Sender, Stopped, Traffic, post
from oncehook.providers.sample import Sample
from tests.support.waiting import next_turn

pytestmark = pytest.mark.system


@pytest.fixture
def traffic() -> Traffic:
    keys = {name: pair[0] for name, pair in make_keys().items()}
    return Traffic("http://127.0.0.1:9", keys, keys, ResponseLog(), rate=10)


@pytest.mark.parametrize("sender", SENDERS, ids=lambda sender: sender.source)
def test_the_ids_of_a_sample_are_its_event_ids(sender: Sender, traffic: Traffic) -> None:
    first, second = traffic._compose(sender), traffic._compose(sender)
    assert all(sender.ids(first)) and not set(sender.ids(first)) & set(sender.ids(second))
    assert first.headers["User-Agent"] == USER_AGENT


def test_the_percentages_of_the_behaviors_add_up_to_100() -> None:
    assert sum(BEHAVIORS.values()) == 100 and NOT_SENT_BY.keys() <= BEHAVIORS.keys()


def test_every_behavior_has_a_method() -> None:
    assert all(hasattr(Traffic, "_" + name.replace(" ", "_")) for name in BEHAVIORS)


@pytest.mark.anyio
async def test_no_delivery_starts_while_the_traffic_is_held_back(traffic: Traffic) -> None:
    sender = SENDERS[0]
    async with traffic.quiet():
        delivery = asyncio.create_task(traffic._post(sender, traffic._compose(sender), [], True))
        await next_turn()
        assert not delivery.done() and traffic.log.counts.deliveries.total() == 0
    assert await delivery == 0, "no server listens, so the delivery gets no response"
    assert traffic.log.counts.unavailable[sender.source] == 1


@pytest.mark.anyio
async def test_a_pause_ends_when_the_demo_stops(traffic: Traffic) -> None:
    traffic.stopping.set()
    with pytest.raises(Stopped):
        await traffic._pause(60)


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(202)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_post_returns_the_status_and_the_body(server: http.server.HTTPServer) -> None:
    url = urlsplit(f"http://127.0.0.1:{server.server_port}/webhooks/stripe")
    assert post(Sample({}, b"hello"), url) == (202, "hello")
