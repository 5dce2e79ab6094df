"""Effects whose target is an HTTP address: requested after the commit, with one key, and only at allowed addresses."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import Effect, Event, Inbox
from oncehook.effects import http
from oncehook.effects.http import EffectPoster
from oncehook.http_client import circuit_breaker
from oncehook.http_client.circuit_breaker import Call, CircuitBreaker
from oncehook.http_client.client import HttpClient
from oncehook.observability import signals
from oncehook.runtime import address_effects
from oncehook.testing import advance
from tests.support.events import Rows
from tests.support.http_target import Request, http_response, receiving
from tests.support.waiting import eventually
from tests.support.work import RETRY_WITHIN_2H, claim

pytestmark = pytest.mark.anyio


STATES = "SELECT status, attempts, last_error FROM webhook_effects"


@pytest.fixture
def make_posting_inbox(tmp_path: Path, database: str) -> Callable[..., Inbox]:
    """An inbox whose handler requests an effect at `url`. `allowed` are its `effect_targets`."""

    def make_posting_inbox(url: str, *allowed: str) -> Inbox:
        config = tmp_path / "oncehook.toml"
        config.write_text(
            f'database = "{database}"\npoll = "50ms"\neffect_targets = {list(allowed)}\n'.replace("'", '"')
        )
        inbox = Inbox(config=str(config))
        inbox.source("stripe", secrets=["whsec_test"])

        @inbox.on("stripe", "invoice.paid")
        async def paid(event: Event) -> None:
            await event.effect("notify:in_1", url, invoice="in_1", amount=2900)

        return inbox

    return make_posting_inbox


async def test_an_effect_that_several_events_request_is_posted_once_with_its_key(
    make_posting_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    async with receiving(http_response(200)) as target:
        inbox = make_posting_inbox(target.url, f"http://127.0.0.1:{target.port}")
        async with inbox.lifespan():
            await claim(inbox, "evt_1", "evt_2")
            await eventually(lambda: rows(STATES) == [("done", 1, None)])
    (request,) = target.requests
    assert request.body == b'{"invoice":"in_1","amount":2900}'
    assert request.headers["content-type"] == "application/json"
    assert len(request.headers["idempotency-key"]) == 40 and request.headers["oncehook-source"] == "stripe"


async def test_arguments_of_any_name_and_content_are_posted_unchanged(
    make_posting_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    args: dict[str, Any] = {"effect": 1, "self": 2, "timeout": 3, "text": "\ud800\x00é", "number": 2**70}
    async with receiving(http_response(200)) as target:
        inbox = make_posting_inbox(target.url, f"http://127.0.0.1:{target.port}")

        @inbox.on("stripe", "invoice.voided")
        async def voided(event: Event) -> None:
            await event.effect("voided:in_1", target.url.replace("http", "HTTP"), **args)

        async with inbox.lifespan():
            await claim(inbox, "evt_1", type="invoice.voided")
            await eventually(lambda: rows(STATES) == [("done", 1, None)])
    (request,) = target.requests
    assert json.loads(request.body) == args


async def test_a_request_is_repeated_with_the_same_key_after_retry_after(
    make_posting_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_effects, "POLICY", RETRY_WITHIN_2H)
    async with receiving(http_response(503, "Retry-After: 1"), http_response(409), http_response(204)) as target:
        inbox = make_posting_inbox(target.url, f"http://127.0.0.1:{target.port}")
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            for attempts in (1, 2):
                await eventually(lambda count=attempts: len(target.requests) >= count)  # type: ignore[misc]
                await eventually(lambda: rows(STATES)[0][0] in ("retrying", "done"))  # a second can pass by itself
                await advance(inbox, "2h")
                inbox._runtime.relay.wake()  # type: ignore[union-attr]
            await eventually(lambda: rows(STATES)[0][:2] == ("done", 3))
    assert len({request.headers["idempotency-key"] for request in target.requests}) == 1


async def test_a_410_response_ends_the_effect_as_failed(
    make_posting_inbox: Callable[..., Inbox], rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(http_response(410)) as target:
        inbox = make_posting_inbox(target.url, f"http://127.0.0.1:{target.port}")
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            await eventually(lambda: rows(STATES)[0][0] == "failed" if rows(STATES) else False)
    assert "410" in rows(STATES)[0][2] and "hidden-in-the-query" not in rows(STATES)[0][2]
    [line] = [record for record in caplog.records if record.msg.startswith("effect_failed")]
    assert vars(line)["target"] == f"http://127.0.0.1:{target.port}"  # a path may contain a secret


@pytest.mark.parametrize(
    "url",
    ["https://a.example/secret", "https://a.example?secret", "https://me:secret@a.example#x", "https://a.example"],
)
def test_a_log_line_contains_only_the_origin_of_an_address(url: str) -> None:
    assert signals.redacted_target("http", url) == "https://a.example"
    assert signals.redacted_target("topic", "a/b") == "a/b"


@pytest.mark.parametrize("named", [None, "https://127.0.0.1:{port}", "http://127.0.0.1", "http://127.0.0.2:{port}"])
async def test_a_private_address_is_requested_only_if_the_configuration_names_its_origin(
    make_posting_inbox: Callable[..., Inbox], rows: Rows, named: str | None
) -> None:
    async with receiving(http_response(200)) as canary:
        inbox = make_posting_inbox(canary.url, *([] if named is None else [named.format(port=canary.port)]))
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            await eventually(lambda: rows(STATES)[0][0] == "failed" if rows(STATES) else False)
    assert canary.connections == 0
    assert rows(STATES)[0][:2] == ("failed", 1)


async def test_an_origin_that_stalls_does_not_delay_other_effects(
    tmp_path: Path, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin has 8 slots. Effects without a slot are released without an attempt, and other effects run."""
    monkeypatch.setattr(circuit_breaker, "PATIENCE", 0.2)
    go_on = asyncio.Event()
    done: list[str] = []

    async def stall(request: Request, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.write(http_response(500))

    async with receiving(stall) as target:
        config = tmp_path / "oncehook.toml"
        allowed = f'effect_targets = ["http://127.0.0.1:{target.port}"]'
        config.write_text(f'database = "{database}"\npoll = "50ms"\n{allowed}\n')
        inbox = Inbox(config=str(config))
        inbox.source("stripe", secrets=["whsec_test"])

        @inbox.effect
        async def mail(effect: Effect) -> None:
            done.append(effect.key)

        @inbox.on("stripe", "*")
        async def paid(event: Event) -> None:
            await event.effect(event.id, mail if event.id == "mail" else target.url)

        async with inbox.lifespan():
            await claim(inbox, *(f"evt_{n:02d}" for n in range(40)))
            await eventually(lambda: target.under_way == 8)
            await claim(inbox, "mail")
            await eventually(lambda: done == ["mail"])
            assert target.most_under_way == 8
            go_on.set()
            counted = "SELECT sum(attempts) FROM webhook_effects WHERE kind = 'http'"
            await eventually(lambda: int(rows(counted)[0][0]) == len(target.requests) > 0)
            assert len(target.requests) < 40


def test_idle_circuit_breakers_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ORIGINS", 3)
    shared = CircuitBreaker("https://shared.test", 4)
    poster = EffectPoster(HttpClient(), (), {"https://shared.test": shared})
    assert poster._breaker("https://shared.test") is shared
    bad = poster._breaker("https://bad.test")
    Call(bad).failed()
    for number in range(10):
        poster._breaker(f"https://{number}.test")
    assert len(poster._own_breakers) <= 4 and poster._breaker("https://bad.test") is bad
