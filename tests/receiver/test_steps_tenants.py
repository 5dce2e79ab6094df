"""Deliveries to the addresses of tenants: who is accepted where, and the responses to the sender."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import pytest

from oncehook import Inbox
from oncehook.observability import metrics
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.testing import deliver, make_pair, post
from oncehook.web.app import Service
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import connected, request, served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("adapter"),
    pytest.mark.parametrize("database", ["sqlite"], indirect=True),
]

SECRETS = {"acme": ["whsec_acme"], "other": ["whsec_other", "whsec_next"]}


async def lookup(tenant: str) -> Sequence[str] | None:
    if tenant == "broken":
        raise RuntimeError("the directory is down")
    return SECRETS.get(tenant)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox()
    inbox.source("stripe", secrets_for=lookup)
    inbox.source("both", provider="stripe", secrets=["whsec_own"], secrets_for=lookup)
    inbox.source("plain", provider="stripe", secrets=["whsec_own"])
    async with inbox.lifespan():
        yield inbox


async def send(inbox: Inbox, path: str, secret: str, body: bytes | None = None) -> tuple[int, str]:
    body = body or stripe_body()
    return (await post(inbox, path, body, stripe_headers(body, secret))).outcome


async def test_tenant_is_verified_with_its_own_secrets_only(inbox: Inbox) -> None:
    assert await send(inbox, "stripe/acme", "whsec_acme") == (202, "accepted")
    assert await send(inbox, "stripe/other/", "whsec_next", stripe_body("evt_2")) == (202, "accepted")
    for path, secret in (("stripe/acme", "whsec_other"), ("stripe/other", "whsec_acme"), ("both/acme", "whsec_own")):
        assert await send(inbox, path, secret) == (401, "bad_signature")
    assert await send(inbox, "both", "whsec_own", stripe_body("evt_3")) == (202, "accepted")
    assert await send(inbox, "both", "whsec_acme") == (401, "bad_signature")


@pytest.mark.parametrize("path", ["stripe/nobody", "stripe/a/b", "stripe/acme/x", "stripe//acme", "stripe/%2e"])
async def test_unknown_tenant_is_not_found(inbox: Inbox, path: str) -> None:
    assert await send(inbox, path, "whsec_acme") == (404, "unknown_tenant")


@pytest.mark.parametrize("path", ["plain/acme", "nowhere/acme", "nowhere", ""])
async def test_source_without_tenants_has_no_addresses_below_it(inbox: Inbox, path: str) -> None:
    assert await send(inbox, path, "whsec_own") == (404, "unknown_source")


async def test_address_without_a_tenant_says_that_the_tenant_is_missing(inbox: Inbox) -> None:
    body = stripe_body()
    response = await post(inbox, "stripe", body, stripe_headers(body, "whsec_acme"))
    assert response.outcome == (404, "tenant_missing")
    assert response.json["error"]["message"].startswith("Deliver to the address of a tenant")


async def test_failing_lookup_is_unavailable_with_retry_after(inbox: Inbox) -> None:
    body = stripe_body()
    response = await post(inbox, "stripe/broken", body, stripe_headers(body, "whsec_acme"))
    assert response.outcome == (503, "unavailable") and int(response.headers["retry-after"]) >= 1


async def test_slow_lookup_is_unavailable_within_its_time_limit(make_inbox: Callable[..., Inbox]) -> None:
    async def hang(tenant: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    inbox = make_inbox()
    inbox.source("stripe", secrets_for=hang, tenants={"timeout": "20ms"})
    async with inbox.lifespan():
        assert await send(inbox, "stripe/acme", "whsec_acme") == (503, "unavailable")


async def test_rate_of_a_tenant_answers_429_with_retry_after(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets_for=lookup, tenants={"rate": "1/h"})
    async with inbox.lifespan():
        assert await send(inbox, "stripe/acme", "whsec_wrong") == (401, "bad_signature")
        assert await send(inbox, "stripe/acme", "whsec_acme") == (202, "accepted")
        body = stripe_body("evt_2")
        response = await post(inbox, "stripe/acme", body, stripe_headers(body, "whsec_acme"))
        assert response.outcome == (429, "rate_limited") and 3500 < int(response.headers["retry-after"]) <= 3600
        assert await send(inbox, "stripe/other", "whsec_other", stripe_body("evt_3")) == (202, "accepted")


async def test_no_label_and_no_count_contains_a_tenant(
    inbox: Inbox, lines: Callable[[], list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = metrics.Tally()
    for name in ("count", "observe", "observe_key"):
        monkeypatch.setattr(metrics, name, getattr(tally, name))
    for path in ("stripe/acme", "stripe/nobody", "stripe/broken", "stripe"):
        await send(inbox, path, "whsec_acme")
    await send(inbox, "stripe/acme", "whsec_wrong")
    keys = [*tally.counters, *tally.histograms]
    assert {label for _, label, *_ in keys} == {"stripe"}
    stats = inbox._runtime.reception.stats
    assert {source for source, _ in [*stats.unwritten_rejections, *stats.unwritten_acks]} == {"stripe"}
    reasons = {reason for _, reason in stats.unwritten_rejections}
    assert reasons == {"unknown_tenant", "tenant_missing", "bad_signature"}


async def test_cached_tenant_takes_the_fast_path(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[bool] = []
    receive = FastProtocol._receive

    def record_receive(self: FastProtocol, body: bytes) -> bool:
        paths.append(receive(self, body))
        return paths[-1]

    monkeypatch.setattr(FastProtocol, "_receive", record_receive)
    inbox = make_inbox()
    inbox.source("stripe", secrets_for=lookup)
    async with served(inbox) as port, connected(port) as wire:
        for number, status in enumerate((202, 202, 202)):
            body = stripe_body(f"evt_{number}")
            await wire.say(request("/webhooks/stripe/acme", stripe_headers(body, "whsec_acme"), body))
            assert (await wire.answer()).status == status
        body = stripe_body("evt_9")
        await wire.say(request("/webhooks/stripe/nobody", stripe_headers(body, "whsec_acme"), body))
        assert (await wire.answer()).status == 404
    assert paths == [False, True, True, False]


async def test_plain_function_works_as_a_lookup(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets_for=SECRETS.get)
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", tenant="acme")).outcome == (202, "accepted")
        assert (await deliver(inbox, "stripe", tenant="other", secret="whsec_acme")).status == 401
        assert (await deliver(inbox, "stripe", tenant="nobody", secret="whsec_acme")).status == 404


async def test_signed_address_contains_the_tenant(make_inbox: Callable[..., Inbox]) -> None:
    async def tokens(tenant: str) -> Sequence[str]:
        return [f"token-of-{tenant}"]

    inbox = make_inbox()
    inbox.source("twilio", secrets_for=tokens, public_url="https://example.com/webhooks/twilio?via=1")
    async with inbox.lifespan():
        response = await deliver(inbox, "twilio", tenant="acme")
        assert response.status < 300
        sent = response.sent
        assert sent is not None
        assert (await post(inbox, "twilio/other", sent.body, sent.headers, query="via=1")).status == 401


async def test_handshake_is_answered_with_the_secret_of_the_tenant(make_inbox: Callable[..., Inbox]) -> None:
    async def tokens(tenant: str) -> Sequence[str] | None:
        return SECRETS.get(tenant)

    inbox = make_inbox()
    inbox.source("meta", secrets_for=tokens, verify_token="token")
    transport = httpx.ASGITransport(app=Service(inbox))
    query = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "token"}
    async with inbox.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/webhooks/meta/acme", params=query)
        assert (answer.status_code, answer.text) == (200, "1158201444")
        assert (await client.get("/webhooks/meta/nobody", params=query)).status_code == 404
        assert (await client.get("/webhooks/meta", params=query)).status_code == 404


async def test_asymmetric_keys_belong_to_a_tenant(make_inbox: Callable[..., Inbox]) -> None:
    pairs = {tenant: make_pair("discord") for tenant in ("acme", "other")}

    async def keys(tenant: str) -> Sequence[str]:
        return [pairs[tenant].verifying]

    inbox = make_inbox()
    inbox.source("discord", secrets_for=keys)
    body = b'{"application_id": "1", "type": 1, "version": 1, "event": {"type": "APPLICATION_AUTHORIZED"}}'
    now = inbox._runtime.clock.now()
    headers, _ = sign(built_in("discord"), body, pairs["acme"].signing, now=now)
    async with inbox.lifespan():
        assert (await post(inbox, "discord/other", body, headers)).status == 401
        assert (await post(inbox, "discord/acme", body, headers)).status in (200, 202, 204)


async def test_inline_source_runs_the_handler_before_the_answer(make_inbox: Callable[..., Inbox]) -> None:
    handled: list[str] = []
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets_for=lookup, mode="inline")

    @inbox.on("stripe", "*")
    async def handle(event: object) -> None:
        handled.append("run")

    async with inbox.lifespan():
        assert await send(inbox, "stripe/acme", "whsec_acme") == (200, "processed")
    assert handled == ["run"]
