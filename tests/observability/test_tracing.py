"""Spans of the real SDK: deliveries, attempts that are linked to them, effects, and outgoing requests."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span

from oncehook import Event, Fail, Inbox, Retry, SyncEvent
from oncehook.effects.effect import Effect
from oncehook.observability import tracing
from oncehook.testing import deliver, drain
from tests.support.events import stripe_body
from tests.support.http_target import http_response, receiving
from tests.support.servers import run_sql
from tests.support.spans import FOREIGN, Spans, all_text, attributes, ids_of, links_of, trace_with

pytestmark = pytest.mark.anyio


# -- a delivery and its work ----------------------------------------------------------------------------------------


async def test_attempt_is_a_new_trace_that_is_linked_to_the_delivery(stripe: Inbox, spans: Spans) -> None:
    inside: list[Span] = []

    @stripe.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        inside.append(get_current_span())

    async with stripe.lifespan():
        answer = await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    delivery_span, work = spans.one("POST /stripe"), spans.one("process stripe")
    assert links_of(work) == [("delivery", ids_of(delivery_span))]
    assert work.parent is None and delivery_span.parent is None and ids_of(work)[0] != ids_of(delivery_span)[0]
    assert (delivery_span.kind, work.kind) == (SpanKind.SERVER, SpanKind.CONSUMER)
    assert inside[0].get_span_context().span_id == ids_of(work)[1]
    source = {"messaging.system": "oncehook", "messaging.destination.name": "stripe", "oncehook.source": "stripe"}
    event = {"messaging.message.id": "evt_1", "oncehook.receipt": answer.receipt}
    assert attributes(delivery_span) == {
        **source, **event, "http.request.method": "POST", "http.route": "/stripe", "http.response.status_code": 202,
        "oncehook.outcome": "accepted", "url.scheme": "http",
    }  # fmt: skip
    assert attributes(work) == {
        **source, **event, "messaging.operation.type": "process", "oncehook.event.type": "invoice.paid",
        "oncehook.consumer": "main",
        "oncehook.attempt": 1, "oncehook.outcome": "processed",
        "oncehook.handler": attributes(work)["oncehook.handler"],
    }  # fmt: skip
    assert str(attributes(work)["oncehook.handler"]).endswith("paid")


async def test_plain_handler_sees_the_span_in_its_thread(stripe: Inbox, spans: Spans) -> None:
    inside: list[int] = []

    @stripe.on("stripe", "*")
    def paid(event: SyncEvent) -> None:
        inside.append(get_current_span().get_span_context().span_id)

    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    assert inside == [ids_of(spans.one("process stripe"))[1]]


async def test_every_attempt_has_a_span_and_an_error_shows_only_its_class(stripe: Inbox, spans: Spans) -> None:
    @stripe.on("stripe", "*", retry=Retry(attempts=3, first=0, most=0))
    async def paid(event: Event) -> None:
        if event.attempt < 3:
            raise ValueError("a hidden card number")
        raise Fail("never")

    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    work = spans.named("process stripe")
    values = [
        (attributes(span)["oncehook.attempt"], attributes(span)["oncehook.outcome"], attributes(span)["error.type"])
        for span in work
    ]
    assert values == [(1, "retrying", "ValueError"), (2, "retrying", "ValueError"), (3, "failed", "Fail")]
    assert all(one.status.status_code is StatusCode.ERROR and len(one.links) == 1 for one in work)
    assert "hidden" not in all_text(spans)


async def test_batch_is_linked_to_every_delivery_and_its_split_runs_are_children(stripe: Inbox, spans: Spans) -> None:
    @stripe.on("stripe", "*", batch=10, retry=Retry(attempts=1))
    async def paid(events: list[Event]) -> None:
        if any(event.id == "evt_2" for event in events):
            raise ValueError

    async with stripe.lifespan():
        for number in range(3):
            await deliver(stripe, "stripe", stripe_body(f"evt_{number}"))
        await drain(stripe)
    deliveries = [("delivery", ids_of(delivery_span)) for delivery_span in spans.named("POST /stripe")]
    (whole,) = [one for one in spans.named("process stripe") if "messaging.batch.message_count" in attributes(one)]
    assert sorted(links_of(whole)) == sorted(deliveries)
    assert (attributes(whole)["messaging.batch.message_count"], attributes(whole)["oncehook.outcome"]) == (3, "split")
    alone = [one for one in spans.named("process stripe") if one is not whole]
    assert sorted(str(attributes(one)["oncehook.outcome"]) for one in alone) == ["failed", "processed", "processed"]


async def test_inline_handler_has_a_span(make_inbox: Callable[..., Inbox], spans: Spans) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body())
    assert links_of(spans.one("process stripe")) == [("delivery", ids_of(spans.one("POST /stripe")))]


# -- strangers ------------------------------------------------------------------------------------------------------


async def test_traceparent_of_a_sender_is_a_link_and_never_a_parent(stripe: Inbox, spans: Spans) -> None:
    stripe.on("stripe", "*")(lambda event: None)
    forged = {"traceparent": FOREIGN, "tracestate": "evil=1", "oncehook-traceparent": FOREIGN}
    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body(), headers=forged)
        await drain(stripe)
    delivery_span, work = spans.one("POST /stripe"), spans.one("process stripe")
    theirs = (int(FOREIGN[3:35], 16), int(FOREIGN[36:52], 16))
    assert delivery_span.parent is None and ids_of(delivery_span)[0] != theirs[0]
    assert links_of(delivery_span) == [("sender", theirs)]
    assert links_of(work) == [("delivery", ids_of(delivery_span))]


async def test_context_header_that_a_sender_forged_is_not_linked(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "active", None)
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body(), headers={tracing.CONTEXT_HEADER: FOREIGN})
        spans = trace_with(monkeypatch)  # the worker traces
        await drain(inbox)
    assert not spans.one("process stripe").links


@pytest.mark.parametrize(
    "traceparent", ["", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "nonsense", "00-é-x-01", "x" * 10_000]
)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_invalid_traceparent_of_a_sender_is_not_linked(stripe: Inbox, spans: Spans, traceparent: str) -> None:
    async with stripe.lifespan():
        answer = await deliver(stripe, "stripe", stripe_body(), headers={"traceparent": traceparent})
    assert answer.status == 202
    assert not spans.one("POST /stripe").links


async def test_no_span_has_a_payload_a_secret_or_an_unknown_path(stripe: Inbox, spans: Spans) -> None:
    stripe.on("stripe", "*")(lambda event: None)
    async with stripe.lifespan():
        body = stripe_body(note="hidden-in-the-body")
        await deliver(stripe, "stripe", body, headers={"Authorization": "Bearer hidden-key", "X-Odd": "hidden-odd"})
        await deliver(stripe, "stripe", body, secret="whsec_hidden")
        for method, path in (("POST", "/hidden-source"), ("HIDDEN", "/stripe")):
            await send_request(stripe, method, path)
        await drain(stripe)
    assert "hidden" not in all_text(spans).lower() and "whsec" not in all_text(spans)
    rejected = [one for one in spans.get_finished_spans() if "error.type" in attributes(one)]
    values = {
        (one.name, attributes(one)["http.response.status_code"], attributes(one)["error.type"]) for one in rejected
    }
    assert values == {
        ("POST /stripe", 401, "bad_signature"),
        ("POST", 404, "unknown_source"),
        ("HTTP /stripe", 405, "method_not_allowed"),
    }
    assert all(one.status.status_code is StatusCode.UNSET for one in rejected)  # an error of the sender


async def send_request(inbox: Inbox, method: str, path: str) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        return None

    await inbox({"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}, receive, send)


# -- effects, and going out -----------------------------------------------------------------------------------------


async def test_effect_is_linked_to_the_delivery_whose_event_requested_it(stripe: Inbox, spans: Spans) -> None:
    @stripe.effect(retry=Retry(attempts=1))
    async def send_mail(effect: Effect, to: str) -> None:
        if to == "jane@hidden.example":
            raise ValueError(to)

    @stripe.on("stripe", "*")
    async def paid(event: Event) -> None:
        await event.effect(f"mail:{event.id}", send_mail, to="jane@hidden.example")

    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    effect = spans.one("perform send_mail")
    assert links_of(effect) == [("delivery", ids_of(spans.one("POST /stripe")))]
    assert (effect.kind, effect.parent, effect.status.status_code) == (SpanKind.CONSUMER, None, StatusCode.ERROR)
    values = attributes(effect)
    assert (values["oncehook.effect.kind"], values["oncehook.attempt"], values["error.type"]) == (
        "function",
        1,
        "ValueError",
    )
    assert values["oncehook.source"] == "stripe" and "hidden" not in all_text(spans)


async def test_forward_carries_the_context_of_oncehook_in_place_of_the_senders(
    database: str, tmp_path: Path, spans: Spans
) -> None:
    async with receiving(http_response(200)) as receiver:
        config = tmp_path / "oncehook.toml"
        address = f'forward = "{receiver.url}"\nforward_headers = ["*"]'
        config.write_text(f'database = "{database}"\n[sources.stripe]\nsecrets = ["whsec_test"]\n{address}\n')
        inbox = Inbox(config=str(config), worker=False)
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body(), headers={"traceparent": FOREIGN, "tracestate": "evil=1"})
            await drain(inbox)
        (request,) = receiver.requests
    sent, work = spans.one("POST"), spans.one("process stripe")
    trace_id, span_id = ids_of(sent)
    assert request.headers["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert not {"tracestate", "oncehook-traceparent"} & set(request.headers)
    assert sent.parent is not None and sent.parent.span_id == ids_of(work)[1]
    assert sent.kind is SpanKind.CLIENT and attributes(sent) == {
        "http.request.method": "POST", "server.address": "127.0.0.1", "server.port": receiver.port,
        "url.scheme": "http", "http.response.status_code": 200,
    }  # fmt: skip
    assert "hidden" not in all_text(spans)  # the target's path and query may hold a secret


async def test_http_effect_carries_its_context(database: str, tmp_path: Path, spans: Spans) -> None:
    async with receiving(http_response(500), http_response(200)) as receiver:
        config = tmp_path / "oncehook.toml"
        config.write_text(
            f'database = "{database}"\neffect_targets = ["http://127.0.0.1:{receiver.port}"]\n'
            '[sources.stripe]\nsecrets = ["whsec_test"]\n'
        )
        inbox = Inbox(config=str(config), worker=False)

        @inbox.on("stripe", "*")
        async def paid(event: Event) -> None:
            await event.effect("tell", receiver.url, amount=1)

        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body())
            await drain(inbox)
    sent, effect = spans.named("POST")[0], spans.named(f"perform http://127.0.0.1:{receiver.port}")[0]
    assert receiver.requests[0].headers["traceparent"].split("-")[1:3] == [
        f"{ids_of(sent)[0]:032x}",
        f"{ids_of(sent)[1]:016x}",
    ]
    assert sent.parent is not None and sent.parent.span_id == ids_of(effect)[1]
    assert (attributes(sent)["error.type"], sent.status.status_code) == ("500", StatusCode.ERROR)
    assert "hidden" not in all_text(spans)


# -- without ----------------------------------------------------------------------------------------------------------


async def test_span_that_is_not_recorded_stores_no_context(
    make_inbox: Callable[..., Inbox], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = trace_with(monkeypatch, ALWAYS_OFF)
    await assert_handler_sees_no_trace_header(make_inbox())
    assert not spans.get_finished_spans()
    monkeypatch.setattr(tracing, "active", tracing.Tracing())  # the API alone: its spans are never recorded
    await assert_handler_sees_no_trace_header(make_inbox())
    stored = [json.loads(headers) for (headers,) in run_sql(database, "SELECT headers FROM webhook_payloads")]
    assert len(stored) == 2 and not any(tracing.CONTEXT_HEADER in headers for headers in stored)


async def assert_handler_sees_no_trace_header(inbox: Inbox) -> None:
    inbox.source("stripe", secrets=["whsec_test"])
    seen: list[dict[str, str]] = []
    inbox.on("stripe", "*")(lambda event: seen.append(event.headers))
    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        await drain(inbox)
    assert len(seen) == 1 and tracing.CONTEXT_HEADER not in seen[0]


async def test_stored_context_is_hidden_from_handlers(stripe: Inbox, database: str) -> None:
    await assert_handler_sees_its_headers(stripe)
    ((stored,),) = run_sql(database, "SELECT headers FROM webhook_payloads")
    assert tracing.CONTEXT_HEADER in json.loads(stored)


async def assert_handler_sees_its_headers(inbox: Inbox) -> None:
    seen: list[dict[str, str]] = []
    inbox.on("stripe", "*")(lambda event: seen.append(event.headers))
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body())
        await drain(inbox)
    assert seen[0]["content-type"] == "application/json" and tracing.CONTEXT_HEADER not in seen[0]


class FailingSampler(Sampler):
    def should_sample(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("a sampler with a bug")

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_failing_sampler_loses_no_event(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_with(monkeypatch, FailingSampler())
    await assert_handler_sees_no_trace_header(make_inbox())


SCRIPT = """
import asyncio, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry" and {blocked}:
            imports.append(name)
            raise ModuleNotFoundError(name)

imports = []
sys.meta_path.insert(0, Missing())
from oncehook import Inbox
from oncehook.observability import tracing
from oncehook.testing import deliver, drain

inbox = Inbox("sqlite:///{folder}/inbox.db", worker=False)
inbox.source("stripe", secrets=["whsec_test"])
inbox.on("stripe", "*")(lambda event: None)
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
{sdk}
async def main():
    async with inbox.lifespan():
        first = len(imports)
        for _ in range(3):
            assert (await deliver(inbox, "stripe", type="invoice.paid")).status == 202
        await drain(inbox)
        assert len(imports) == first, imports

asyncio.run(main())
imported = [name for name in sys.modules if name.startswith("opentelemetry")]
assert bool(imported) != {blocked}, imported
assert any(name.startswith("opentelemetry.sdk") for name in imported) == {traced}
assert (tracing.active is not None) == {traced}
"""
SDK = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + chr(10))))
trace.set_tracer_provider(provider)
"""


@pytest.mark.parametrize("installed", ["nothing", "the API", "an SDK"])
def test_receiver_runs_without_spans_if_sdk_or_api_is_missing(tmp_path: Path, installed: str) -> None:
    traced = installed == "an SDK"
    script = SCRIPT.format(blocked=installed == "nothing", traced=traced, folder=tmp_path, sdk=SDK if traced else "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == (["POST /stripe"] * 3 + ["process stripe"] * 3 if traced else [])


async def test_concurrent_deliveries_have_separate_contexts(stripe: Inbox, spans: Spans) -> None:
    """Deliveries share commits, and not spans."""
    stripe.on("stripe", "*")(lambda event: None)
    async with stripe.lifespan():
        await asyncio.gather(*(deliver(stripe, "stripe", stripe_body(f"evt_{n}")) for n in range(20)))
        await drain(stripe)
    deliveries = {attributes(one)["messaging.message.id"]: ids_of(one) for one in spans.named("POST /stripe")}
    work = {attributes(one)["messaging.message.id"]: links_of(one) for one in spans.named("process stripe")}
    assert len(deliveries) == 20 and work == {
        event: [("delivery", delivery_span)] for event, delivery_span in deliveries.items()
    }
