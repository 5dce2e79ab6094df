"""Which deliveries take the fast path, and what a bug in it costs."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncehook import Inbox
from oncehook.config.settings import SourceSettings
from oncehook.observability import tracing
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.steps import Receiver
from oncehook.web.app import Service
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import connected, request, served

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def record_paths(make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, *, fast: bool) -> list[str]:
    """Deliver one event, and return its path: "direct" or "asgi"."""
    paths = []
    receive, serve = FastProtocol._receive, Service.__call__

    def record_receive(self: FastProtocol, body: bytes) -> bool:
        is_direct = receive(self, body)
        paths.append("direct" if is_direct else "not direct")
        return is_direct

    def record_serve(self: Service, scope: Any, *args: Any) -> Any:
        if scope["type"] == "http":
            paths.append("asgi")
        return serve(self, scope, *args)

    # The sender sees no difference between the paths, so the real calls are recorded.
    monkeypatch.setattr(FastProtocol, "_receive", record_receive)
    monkeypatch.setattr(Service, "__call__", record_serve)
    inbox = make_inbox(fast_paths=fast)
    inbox.source("stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with served(inbox) as port, connected(port) as wire:
        await wire.say(request("/webhooks/stripe", stripe_headers(body), body))
        assert (await wire.answer()).status == 202
    return paths


@pytest.mark.anyio
async def test_a_complete_delivery_goes_to_the_receiver_directly(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await record_paths(make_inbox, monkeypatch, fast=True) == ["direct"]


@pytest.mark.anyio
async def test_without_fast_paths_a_delivery_goes_through_asgi(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await record_paths(make_inbox, monkeypatch, fast=False) == ["asgi"]


@pytest.mark.anyio
async def test_tracing_does_not_change_the_path(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(tracing, "active", tracing.Tracing(provider))
    assert await record_paths(make_inbox, monkeypatch, fast=True) == ["direct"]
    (span,) = spans.get_finished_spans()
    assert span.name == "POST /webhooks/stripe"
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 202


@pytest.mark.anyio
@pytest.mark.parametrize("fast", [True, False])
async def test_a_span_that_raises_does_not_change_the_response(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("an exporter's bug")

    monkeypatch.setattr(Span, "set_attributes", fail)
    monkeypatch.setattr(tracing, "active", tracing.Tracing(TracerProvider()))
    assert await record_paths(make_inbox, monkeypatch, fast=fast) == ["direct" if fast else "asgi"]


@pytest.mark.anyio
async def test_a_bug_in_the_receiver_closes_the_connection(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async def fail(*args: Any) -> None:
        raise RuntimeError("a bug")

    # It stands for a bug in the receiver: the errors of senders and of the database have responses.
    monkeypatch.setattr(Receiver, "receive", fail)
    inbox = make_inbox(fast_paths=True)
    inbox.source("stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with served(inbox) as port, connected(port) as wire:
        await wire.say(request("/webhooks/stripe", stripe_headers(body), body))
        assert await wire.is_closed()
    assert [line["loop"] for line in lines() if line["event"] == "background_failed"] == ["receiver"]


@pytest.mark.anyio
async def test_a_response_that_cannot_be_written_does_not_affect_other_deliveries(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    """Deliveries that share a commit are answered one after the other when it returns."""
    answer = FastProtocol.answer

    def fail_first(self: FastProtocol, cycle: Any, response: Any) -> None:
        if b"evt_0" in response[1]:
            raise RuntimeError("a bug")
        answer(self, cycle, response)

    # It stands for a bug in `answer`.
    monkeypatch.setattr(FastProtocol, "answer", fail_first)
    inbox = make_inbox(fast_paths=True)
    inbox.source("stripe", secrets=["whsec_test"])
    bodies = [stripe_body(f"evt_{number}") for number in range(5)]
    async with served(inbox) as port, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(port)) for _ in bodies]
        for wire, body in zip(wires, bodies, strict=True):
            await wire.say(request("/webhooks/stripe", stripe_headers(body), body))
        assert await wires[0].is_closed()
        assert [(await wire.answer()).status for wire in wires[1:]] == [202] * 4
    assert rows("SELECT count(*) FROM webhook_receipts") == [(5,)]


@pytest.mark.anyio
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
async def test_a_fragment_is_no_part_of_the_signed_address(make_inbox: Callable[..., Inbox], fast: bool) -> None:
    address, body = "https://hooks.example/webhooks/square", b'{"event_id": "evt_1", "type": "payment.created"}'
    inbox = make_inbox(fast_paths=fast)
    inbox.source("square", secrets=["square secret of a test"], public_url=address)
    statuses = []
    async with served(inbox) as port:
        for signed in (f"{address}?a", f"{address}?a#b"):
            headers, _ = sign(
                built_in("square"),
                body,
                "square secret of a test",
                now=0.0,
                settings=SourceSettings(public_url=signed),
            )
            async with connected(port) as wire:
                await wire.say(request("/webhooks/square?a#b", {**headers, "Content-Type": "application/json"}, body))
                statuses.append((await wire.answer()).status)
    assert statuses == [202, 401]
