"""`oncehook serve` checks at its start that its HTTP protocols work with the uvicorn that is installed."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncehook import Inbox
from oncehook.observability import tracing
from oncehook.receiver import protocol_check
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol
from oncehook.receiver.protocol_check import PLAIN, check, choose_protocol
from oncehook.receiver.steps import Receiver
from oncehook.web.app import Service
from tests.cli.test_serve import post
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import connected, process, request, served, write_config

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.mark.anyio
async def test_both_protocols_work_with_the_installed_uvicorn(database: str) -> None:
    await check(FastProtocol, direct=True)
    await check(LimitedProtocol, direct=False)
    assert await choose_protocol(fast=True) is FastProtocol
    assert await choose_protocol(fast=False) is LimitedProtocol


@pytest.mark.anyio
async def test_a_changed_uvicorn_turns_the_fast_protocol_off_with_a_log_line(
    database: str, monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    monkeypatch.setattr(FastProtocol, "_may_be_direct", lambda self: self.an_attribute_that_uvicorn_renamed)
    assert await choose_protocol(fast=True) is LimitedProtocol
    (line,) = [line for line in lines() if line["event"] == "fast_path_off"]
    assert "FastProtocol does not work with uvicorn" in line["detail"]


@pytest.mark.anyio
async def test_where_neither_protocol_works_uvicorns_own_is_used(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", lambda self: None)
    monkeypatch.setattr(protocol_check, "SECONDS", 0.2)
    assert await choose_protocol(fast=True) == PLAIN


async def paths_taken(make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, *, fast: bool) -> list[str]:
    """By which path a complete delivery goes: "direct" or "asgi"."""
    paths = []
    receive, serve = FastProtocol._receive, Service.__call__

    def receive_noted(self: FastProtocol, body: bytes) -> bool:
        is_direct = receive(self, body)
        paths.append("direct" if is_direct else "not direct")
        return is_direct

    def serve_noted(self: Service, scope: Any, *given: Any) -> Any:
        if scope["type"] == "http":
            paths.append("asgi")
        return serve(self, scope, *given)

    monkeypatch.setattr(FastProtocol, "_receive", receive_noted)
    monkeypatch.setattr(Service, "__call__", serve_noted)
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
    assert await paths_taken(make_inbox, monkeypatch, fast=True) == ["direct"]


@pytest.mark.anyio
async def test_without_fast_paths_a_delivery_goes_through_asgi(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await paths_taken(make_inbox, monkeypatch, fast=False) == ["asgi"]


@pytest.mark.anyio
async def test_tracing_does_not_change_the_path(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(tracing, "active", tracing.Tracing(provider))
    assert await paths_taken(make_inbox, monkeypatch, fast=True) == ["direct"]
    (span,) = spans.get_finished_spans()
    assert span.name == "POST /webhooks/stripe"
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 202


@pytest.mark.anyio
@pytest.mark.parametrize("fast", [True, False])
async def test_a_span_that_raises_costs_no_answer(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("an exporter's bug")

    monkeypatch.setattr(Span, "set_attributes", fail)
    monkeypatch.setattr(tracing, "active", tracing.Tracing(TracerProvider()))
    assert await paths_taken(make_inbox, monkeypatch, fast=fast) == ["direct" if fast else "asgi"]


@pytest.mark.anyio
async def test_a_bug_in_the_receiver_closes_the_connection(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async def fail(*given: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Receiver, "receive", fail)
    inbox = make_inbox(fast_paths=True)
    inbox.source("stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with served(inbox) as port, connected(port) as wire:
        await wire.say(request("/webhooks/stripe", stripe_headers(body), body))
        assert await wire.is_closed()
    assert [line["loop"] for line in lines() if line["event"] == "background_failed"] == ["receiver"]


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_written_costs_nobody_else_theirs(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    """Deliveries that share a commit are answered one after the other, in the moment of the commit."""
    answer = FastProtocol.answer

    def fail_first(self: FastProtocol, exchange: Any, response: Any) -> None:
        if b"evt_0" in response[1]:
            raise RuntimeError("a bug")
        answer(self, exchange, response)

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


def test_serve_without_fast_paths_accepts_and_limits_heads(tmp_path: Path, database: str, rows: Rows) -> None:
    with process(write_config(tmp_path, database), "--no-worker", "--no-fast-paths") as service:
        assert post(service.port, stripe_body("evt_1")).status_code == 202
        large = httpx.post(f"http://127.0.0.1:{service.port}/webhooks/stripe", headers={"x": "x" * 70_000})
        assert large.status_code == 431
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]
