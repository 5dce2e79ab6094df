"""Effects whose target is an HTTP address: posted after the commit, with one key, and only where they may go."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Event, Inbox
from oncehook.testing import advance
from tests.events import Rows
from tests.targets import receiving, said
from tests.working import claim, until

pytestmark = pytest.mark.anyio

STATES = "SELECT status, attempts, last_error FROM webhook_effects"


@pytest.fixture
def make(tmp_path: Path, database: str) -> Callable[..., Inbox]:
    """An inbox whose handler posts to `url`; `allowed` is what its file names."""

    def make(url: str, *allowed: str) -> Inbox:
        config = tmp_path / "oncehook.toml"
        config.write_text(f'database = "{database}"\neffect_targets = {list(allowed)}\n'.replace("'", '"'))
        inbox = Inbox(config=str(config))
        inbox.source("stripe", secrets=["whsec_test"])

        @inbox.on("stripe", "invoice.paid")
        async def paid(event: Event) -> None:
            await event.effect("notify:in_1", url, invoice="in_1", amount=2900)

        return inbox

    return make


async def test_an_effect_is_posted_once_with_its_key_though_several_events_ask_for_it(
    make: Callable[..., Inbox], rows: Rows
) -> None:
    async with receiving(said(200)) as target:
        inbox = make(target.url, f"http://127.0.0.1:{target.port}")
        async with inbox.lifespan():
            await claim(inbox, "evt_1", "evt_2")
            await until(lambda: rows(STATES) == [("done", 1, None)])
    (request,) = target.requests
    assert request.body == b'{"invoice":"in_1","amount":2900}'
    assert request.headers["content-type"] == "application/json"
    assert len(request.headers["idempotency-key"]) == 40 and request.headers["oncehook-source"] == "stripe"


async def test_a_target_that_asks_to_wait_is_called_again_with_the_same_key(
    make: Callable[..., Inbox], rows: Rows
) -> None:
    async with receiving(said(503, "Retry-After: 1"), said(500), said(204)) as target:
        inbox = make(target.url, f"http://127.0.0.1:{target.port}")
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            for attempts in (1, 2):
                await until(lambda count=attempts: len(target.requests) == count)  # type: ignore[misc]
                await until(lambda: rows(STATES)[0][0] == "retrying")
                await advance(inbox, "2h")
                inbox.relay.wake()  # type: ignore[union-attr]
            await until(lambda: rows(STATES)[0][:2] == ("done", 3))
    assert len({request.headers["idempotency-key"] for request in target.requests}) == 1


async def test_410_gives_up(make: Callable[..., Inbox], rows: Rows) -> None:
    async with receiving(said(410)) as target:
        inbox = make(target.url, f"http://127.0.0.1:{target.port}")
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            await until(lambda: rows(STATES)[0][0] == "failed" if rows(STATES) else False)
    assert "410" in rows(STATES)[0][2] and "hidden-in-the-query" not in rows(STATES)[0][2]


async def test_an_address_that_is_not_public_is_not_called_unless_the_file_names_it(
    make: Callable[..., Inbox], rows: Rows
) -> None:
    async with receiving(said(200)) as canary:
        inbox = make(canary.url)
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            await until(lambda: rows(STATES)[0][0] == "failed" if rows(STATES) else False)
    assert canary.connections == 0
    assert rows(STATES)[0][:2] == ("failed", 1)
