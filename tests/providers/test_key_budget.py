"""Fetched keys under attack and over time: a budget per source, renewal in the background, expired keys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncehook import Inbox
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Unavailable
from oncehook.providers.certificates import (
    CACHE_SECONDS,
    MAX_FETCHES_PER_MINUTE,
    RENEW_AFTER,
    STALE_SECONDS,
    Certificates,
    KeyNotFound,
)
from oncehook.providers.families import paypal
from oncehook.web.app import Service
from tests.providers.families.test_sns import message
from tests.providers.test_certificates import Moving
from tests.providers.test_fetched_keys import ANSWERS, CREDENTIALS, Served, both, jwk, source_of, verify
from tests.support.providers import NOW, OPTIONS, changed, pem_of, sender
from tests.support.waiting import eventually


@pytest.mark.anyio
@both
async def test_expired_key_stays_valid_for_a_week_while_its_host_is_down(name: str) -> None:
    clock, served = Moving(), Served(ANSWERS[name]())
    source = source_of(name, Certificates(fetch=served, clock=clock))
    await verify(source, sender(name).compose())
    served.answer = OSError("it did not answer")
    clock.at += CACHE_SECONDS + 1
    assert await verify(source, sender(name).compose()) == 0
    clock.at += STALE_SECONDS - CACHE_SECONDS
    with pytest.raises(Unavailable):
        await verify(source, sender(name).compose())


@pytest.mark.anyio
@both
@pytest.mark.parametrize("answer", [KeyNotFound("the host answered 404"), b"no key"], ids=str)
async def test_expired_key_is_dropped_when_its_host_no_longer_has_it(name: str, answer: bytes | OSError) -> None:
    clock, served = Moving(), Served(ANSWERS[name]())
    source = source_of(name, Certificates(fetch=served, clock=clock))
    await verify(source, sender(name).compose())
    served.answer = answer
    clock.at += CACHE_SECONDS + 1
    for _ in range(2):
        with pytest.raises(Unavailable):
            await verify(source, sender(name).compose())


@pytest.mark.anyio
@both
async def test_missing_key_is_requested_once_a_minute(name: str) -> None:
    clock, served = Moving(), Served(KeyNotFound("the host answered 404"))
    source = source_of(name, Certificates(fetch=served, clock=clock))
    for seconds, requests in ((0, 1), (1, 1), (58, 1), (2, 2)):
        clock.at += seconds
        with pytest.raises(Unavailable):
            await verify(source, sender(name).compose())
        assert len(served.requests) == requests


class Hosts:
    """The hosts of the providers: they return a key and record the requests."""

    def __init__(self) -> None:
        self.fail: OSError | None = None
        self.requests: list[str] = []

    async def __call__(self, url: str, content: bytes = b"") -> bytes:
        self.requests.append(url)
        if self.fail is not None:
            raise self.fail
        return jwk() if content else pem_of()

    async def wait_for_requests(self, count: int, cache: Certificates) -> None:
        await eventually(lambda: len(self.requests) >= count and not cache._fetching, "the key is fetched")


@asynccontextmanager
async def receiving(
    folder: Path, hosts: Hosts, clock: Moving, *names: str
) -> AsyncIterator[tuple[Certificates, Callable[[str, Delivery], Coroutine[Any, Any, int]]]]:
    """A running inbox with a source of each provider, and a function that sends it a delivery."""
    certificates = Certificates(fetch=hosts, clock=clock)
    inbox = Inbox(f"sqlite:///{folder / 'inbox.db'}", worker=False, clock=clock, certificates=certificates)
    for name in names:
        settings = {option: OPTIONS[option] for option in sender(name).provider.options}
        inbox.source(name, provider=name, secrets=[CREDENTIALS] if name == "plaid" else [], **settings)
    async with (
        inbox.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
    ):

        async def send(name: str, delivery: Delivery) -> int:
            headers = list(delivery.headers.items())
            return (await client.post(f"/webhooks/{name}", content=delivery.body, headers=headers)).status_code

        yield certificates, send


def forged(number: int) -> Delivery:
    """A delivery that names a PayPal certificate that does not exist."""
    delivery = sender("paypal").compose(number=1)
    address = f"https://api.paypal.com/v1/notifications/certs/CERT-{number}".encode()
    return changed(delivery, {**delivery.headers, paypal.CERTIFICATE: address})


@pytest.mark.anyio
async def test_forged_requests_to_one_source_do_not_use_up_the_fetches_of_another(tmp_path: Path) -> None:
    hosts = Hosts()
    async with receiving(tmp_path, hosts, Moving(), "paypal", "ses") as (_, send):
        hosts.fail = KeyNotFound("the host answered 404")
        assert {await send("paypal", forged(number)) for number in range(150)} == {503}
        assert len(hosts.requests) == MAX_FETCHES_PER_MINUTE
        hosts.fail = None
        assert await send("ses", message()) == 202


@pytest.mark.anyio
async def test_hanging_fetches_of_one_source_do_not_block_another(tmp_path: Path) -> None:
    hosts, release = Hosts(), asyncio.Event()

    async def fetch(url: str, content: bytes = b"") -> bytes:
        if "CERT-" in url:
            await release.wait()
        return await hosts(url, content)

    async with receiving(tmp_path, fetch, Moving(), "paypal", "ses") as (_, send):  # type: ignore[arg-type]
        waiting = [asyncio.create_task(send("paypal", forged(number))) for number in range(20)]
        try:
            assert await send("ses", message()) == 202
        finally:
            release.set()
        assert {await task for task in waiting} <= {401, 503}


@pytest.mark.anyio
@both
async def test_nothing_is_fetched_for_a_timestamp_outside_the_tolerance(name: str, tmp_path: Path) -> None:
    hosts = Hosts()
    async with receiving(tmp_path, hosts, Moving(), name) as (_, send):
        for now in (NOW - 30 * 86400, NOW + 3600):
            assert await send(name, sender(name).compose(now=now)) == 401
        assert hosts.requests == []
        assert await send(name, sender(name).compose()) == 202


@pytest.mark.anyio
@both
async def test_key_in_use_is_renewed_in_the_background_before_it_expires(name: str, tmp_path: Path) -> None:
    hosts, clock = Hosts(), Moving()
    async with receiving(tmp_path, hosts, clock, name) as (known, send):
        assert await send(name, sender(name).compose()) == 202
        clock.at += RENEW_AFTER + 1
        hosts.fail = OSError("it did not answer")
        assert await send(name, sender(name).compose()) == 202, (
            "a delivery neither waits for the renewal nor fails with it"
        )
        await hosts.wait_for_requests(2, known)
        assert await send(name, sender(name).compose()) == 202
        assert len(hosts.requests) == 2, "a failure is not repeated at once"
        clock.at += 61
        hosts.fail = None
        assert await send(name, sender(name).compose()) == 202
        await hosts.wait_for_requests(3, known)
        clock.at += RENEW_AFTER - 1
        assert await send(name, sender(name).compose()) == 202
        assert len(hosts.requests) == 3


@pytest.mark.anyio
async def test_unused_key_is_not_renewed(tmp_path: Path) -> None:
    hosts, clock = Hosts(), Moving()
    async with receiving(tmp_path, hosts, clock, "paypal", "ses") as (known, send):
        assert await send("paypal", sender("paypal").compose()) == 202
        assert await send("ses", message()) == 202
        clock.at += RENEW_AFTER + 1
        assert await send("ses", message()) == 202
        await hosts.wait_for_requests(4, known)  # both were used since they were fetched
        clock.at += RENEW_AFTER + 1
        assert await send("ses", message()) == 202
        await hosts.wait_for_requests(5, known)
        assert len(hosts.requests) == 5 and "amazonaws" in hosts.requests[-1]
