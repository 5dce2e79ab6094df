"""Spans by the real SDK: a delivery, the work that is linked to it, effects, and what goes out."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span

from oncehook import Event, Fail, Inbox, Retry, SyncEvent
from oncehook.effects.effect import Effect
from oncehook.observability import tracing
from oncehook.testing import deliver, drain
from tests.support.events import stripe_body
from tests.support.http_target import receiving, said
from tests.support.servers import ask

pytestmark = pytest.mark.anyio

STRANGER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans(InMemorySpanExporter):
    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def links(span: ReadableSpan) -> list[tuple[str, tuple[int, int]]]:
    return [
        (str((one.attributes or {})["oncehook.link"]), (one.context.trace_id, one.context.span_id))
        for one in span.links
    ]


def trace_with(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> Spans:
    spans, provider = Spans(), TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(tracing, "active", tracing.Tracing(provider))
    return spans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    yield trace_with(monkeypatch)


@pytest.fixture
def stripe(make_inbox: Callable[..., Inbox], spans: Spans) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


# -- a delivery and its work ----------------------------------------------------------------------------------------


async def test_an_attempt_is_a_trace_of_its_own_that_is_linked_to_the_delivery(stripe: Inbox, spans: Spans) -> None:
    inside: list[Span] = []

    @stripe.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        inside.append(get_current_span())

    async with stripe.lifespan():
        answer = await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    door, work = spans.one("POST /stripe"), spans.one("process stripe")
    assert links(work) == [("delivery", context(door))]
    assert work.parent is None and door.parent is None and context(work)[0] != context(door)[0]
    assert (door.kind, work.kind) == (SpanKind.SERVER, SpanKind.CONSUMER)
    assert inside[0].get_span_context().span_id == context(work)[1]
    source = {"messaging.system": "oncehook", "messaging.destination.name": "stripe", "oncehook.source": "stripe"}
    event = {"messaging.message.id": "evt_1", "oncehook.receipt": answer.receipt}
    assert facts(door) == {
        **source, **event, "http.request.method": "POST", "http.route": "/stripe", "http.response.status_code": 202,
        "oncehook.outcome": "accepted", "url.scheme": "http",
    }  # fmt: skip
    assert facts(work) == {
        **source, **event, "messaging.operation.type": "process", "oncehook.event.type": "invoice.paid",
        "oncehook.attempt": 1, "oncehook.outcome": "processed", "oncehook.handler": facts(work)["oncehook.handler"],
    }  # fmt: skip
    assert str(facts(work)["oncehook.handler"]).endswith("paid")


async def test_a_plain_handler_in_its_thread_sees_the_span(stripe: Inbox, spans: Spans) -> None:
    inside: list[int] = []

    @stripe.on("stripe", "*")
    def paid(event: SyncEvent) -> None:
        inside.append(get_current_span().get_span_context().span_id)

    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    assert inside == [context(spans.one("process stripe"))[1]]


async def test_every_attempt_has_a_span_and_an_error_tells_its_class_alone(stripe: Inbox, spans: Spans) -> None:
    @stripe.on("stripe", "*", retry=Retry(attempts=3, first=0, most=0))
    async def paid(event: Event) -> None:
        if event.attempt < 3:
            raise ValueError("the hidden card of somebody")
        raise Fail("never")

    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    work = spans.named("process stripe")
    told = [(facts(one)["oncehook.attempt"], facts(one)["oncehook.outcome"], facts(one)["error.type"]) for one in work]
    assert told == [(1, "retrying", "ValueError"), (2, "retrying", "ValueError"), (3, "failed", "Fail")]
    assert all(one.status.status_code is StatusCode.ERROR and len(one.links) == 1 for one in work)
    assert "hidden" not in everything(spans)


async def test_a_batch_is_linked_to_every_delivery_and_reruns_below_it(stripe: Inbox, spans: Spans) -> None:
    @stripe.on("stripe", "*", batch=10, retry=Retry(attempts=1))
    async def paid(events: list[Event]) -> None:
        if any(event.id == "evt_2" for event in events):
            raise ValueError

    async with stripe.lifespan():
        for number in range(3):
            await deliver(stripe, "stripe", stripe_body(f"evt_{number}"))
        await drain(stripe)
    doors = [("delivery", context(door)) for door in spans.named("POST /stripe")]
    (whole,) = [one for one in spans.named("process stripe") if "messaging.batch.message_count" in facts(one)]
    assert sorted(links(whole)) == sorted(doors)
    assert (facts(whole)["messaging.batch.message_count"], facts(whole)["oncehook.outcome"]) == (3, "split")
    alone = [one for one in spans.named("process stripe") if one is not whole]
    assert sorted(str(facts(one)["oncehook.outcome"]) for one in alone) == ["failed", "processed", "processed"]


async def test_an_inline_handler_has_its_span_too(make_inbox: Callable[..., Inbox], spans: Spans) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body())
    assert links(spans.one("process stripe")) == [("delivery", context(spans.one("POST /stripe")))]


# -- strangers ------------------------------------------------------------------------------------------------------


async def test_what_a_sender_says_of_itself_is_a_link_and_never_a_parent(stripe: Inbox, spans: Spans) -> None:
    stripe.on("stripe", "*")(lambda event: None)
    forged = {"traceparent": STRANGER, "tracestate": "evil=1", "oncehook-traceparent": STRANGER}
    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body(), headers=forged)
        await drain(stripe)
    door, work = spans.one("POST /stripe"), spans.one("process stripe")
    theirs = (int(STRANGER[3:35], 16), int(STRANGER[36:52], 16))
    assert door.parent is None and context(door)[0] != theirs[0]
    assert links(door) == [("sender", theirs)]
    assert links(work) == [("delivery", context(door))]


async def test_a_context_that_a_sender_forged_while_nobody_traced_is_no_link(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "active", None)
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body(), headers={tracing.CONTEXT_HEADER: STRANGER})
        spans = trace_with(monkeypatch)  # a worker that does
        await drain(inbox)
    assert not spans.one("process stripe").links


@pytest.mark.parametrize("told", ["", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "nonsense", "00-é-x-01", "x" * 10_000])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_sender_that_talks_nonsense_is_not_linked(stripe: Inbox, spans: Spans, told: str) -> None:
    async with stripe.lifespan():
        answer = await deliver(stripe, "stripe", stripe_body(), headers={"traceparent": told})
    assert answer.status == 202
    assert not spans.one("POST /stripe").links


async def test_no_span_has_a_payload_a_secret_or_a_strangers_path(stripe: Inbox, spans: Spans) -> None:
    stripe.on("stripe", "*")(lambda event: None)
    async with stripe.lifespan():
        body = stripe_body(note="hidden-in-the-body")
        await deliver(stripe, "stripe", body, headers={"Authorization": "Bearer hidden-key", "X-Odd": "hidden-odd"})
        await deliver(stripe, "stripe", body, secret="whsec_hidden")
        for method, path in (("POST", "/hidden-source"), ("HIDDEN", "/stripe")):
            await raw(stripe, method, path)
        await drain(stripe)
    assert "hidden" not in everything(spans).lower() and "whsec" not in everything(spans)
    refused = [one for one in spans.get_finished_spans() if "error.type" in facts(one)]
    told = {(one.name, facts(one)["http.response.status_code"], facts(one)["error.type"]) for one in refused}
    assert told == {
        ("POST /stripe", 401, "bad_signature"),
        ("POST", 404, "unknown_source"),
        ("HTTP /stripe", 405, "method_not_allowed"),
    }
    assert all(one.status.status_code is StatusCode.UNSET for one in refused)  # the sender's fault, not ours


async def raw(inbox: Inbox, method: str, path: str) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        return None

    await inbox({"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}, receive, send)


def everything(spans: Spans) -> str:
    return "".join(span.to_json() for span in spans.get_finished_spans())


# -- effects, and going out -----------------------------------------------------------------------------------------


async def test_an_effect_is_linked_to_the_delivery_whose_event_asked_for_it(stripe: Inbox, spans: Spans) -> None:
    @stripe.effect(retry=Retry(attempts=1))
    async def send_mail(effect: Effect, to: str) -> None:
        if to == "somebody@hidden.example":
            raise ValueError(to)

    @stripe.on("stripe", "*")
    async def paid(event: Event) -> None:
        await event.effect(f"mail:{event.id}", send_mail, to="somebody@hidden.example")

    async with stripe.lifespan():
        await deliver(stripe, "stripe", stripe_body())
        await drain(stripe)
    effect = spans.one("perform send_mail")
    assert links(effect) == [("delivery", context(spans.one("POST /stripe")))]
    assert (effect.kind, effect.parent, effect.status.status_code) == (SpanKind.CONSUMER, None, StatusCode.ERROR)
    told = facts(effect)
    assert (told["oncehook.effect.kind"], told["oncehook.attempt"], told["error.type"]) == ("function", 1, "ValueError")
    assert told["oncehook.source"] == "stripe" and "hidden" not in everything(spans)


async def test_what_is_forwarded_carries_our_context_in_place_of_the_senders(
    database: str, tmp_path: Path, spans: Spans
) -> None:
    async with receiving(said(200)) as receiver:
        config = tmp_path / "oncehook.toml"
        address = f'forward = "{receiver.url}"\nforward_headers = ["*"]'
        config.write_text(f'database = "{database}"\n[sources.stripe]\nsecrets = ["whsec_test"]\n{address}\n')
        inbox = Inbox(config=str(config), worker=False)
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body(), headers={"traceparent": STRANGER, "tracestate": "evil=1"})
            await drain(inbox)
        (request,) = receiver.requests
    sent, work = spans.one("POST"), spans.one("process stripe")
    trace_id, span_id = context(sent)
    assert request.headers["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert not {"tracestate", "oncehook-traceparent"} & set(request.headers)
    assert sent.parent is not None and sent.parent.span_id == context(work)[1]
    assert sent.kind is SpanKind.CLIENT and facts(sent) == {
        "http.request.method": "POST", "server.address": "127.0.0.1", "server.port": receiver.port,
        "url.scheme": "http", "http.response.status_code": 200,
    }  # fmt: skip
    assert "hidden" not in everything(spans)  # the target's path and query may hold a secret


async def test_an_effect_to_an_address_carries_its_context(database: str, tmp_path: Path, spans: Spans) -> None:
    async with receiving(said(500), said(200)) as receiver:
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
        f"{context(sent)[0]:032x}",
        f"{context(sent)[1]:016x}",
    ]
    assert sent.parent is not None and sent.parent.span_id == context(effect)[1]
    assert (facts(sent)["error.type"], sent.status.status_code) == ("500", StatusCode.ERROR)
    assert "hidden" not in everything(spans)


# -- without ----------------------------------------------------------------------------------------------------------


async def test_what_is_not_recorded_keeps_nothing_with_the_receipt(
    make_inbox: Callable[..., Inbox], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = trace_with(monkeypatch, ALWAYS_OFF)
    await one_event(make_inbox())
    assert not spans.get_finished_spans()
    monkeypatch.setattr(tracing, "active", tracing.Tracing())  # the API, whose spans are nothing
    await one_event(make_inbox())
    kept = [json.loads(headers) for (headers,) in ask(database, "SELECT headers FROM webhook_payloads")]
    assert len(kept) == 2 and not any(tracing.CONTEXT_HEADER in headers for headers in kept)


async def one_event(inbox: Inbox) -> None:
    inbox.source("stripe", secrets=["whsec_test"])
    seen: list[dict[str, str]] = []
    inbox.on("stripe", "*")(lambda event: seen.append(event.headers))
    async with inbox.lifespan():
        await deliver(inbox, "stripe", type="invoice.paid")
        await drain(inbox)
    assert len(seen) == 1 and tracing.CONTEXT_HEADER not in seen[0]


async def test_the_kept_context_is_not_among_the_headers_that_a_handler_sees(stripe: Inbox, database: str) -> None:
    await one_event_of(stripe)
    ((kept,),) = ask(database, "SELECT headers FROM webhook_payloads")
    assert tracing.CONTEXT_HEADER in json.loads(kept)


async def one_event_of(inbox: Inbox) -> None:
    seen: list[dict[str, str]] = []
    inbox.on("stripe", "*")(lambda event: seen.append(event.headers))
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body())
        await drain(inbox)
    assert seen[0]["content-type"] == "application/json" and tracing.CONTEXT_HEADER not in seen[0]


class Broken(Sampler):
    def should_sample(self, *args: Any, **named: Any) -> Any:
        raise RuntimeError("a sampler with a bug")

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_broken_sampler_costs_no_event(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_with(monkeypatch, Broken())
    await one_event(make_inbox())


SCRIPT = """
import asyncio, sys

class Away:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry" and {blocked}:
            asked.append(name)
            raise ModuleNotFoundError(name)

asked = []
sys.meta_path.insert(0, Away())
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
        first = len(asked)
        for _ in range(3):
            assert (await deliver(inbox, "stripe", type="invoice.paid")).status == 202
        await drain(inbox)
        assert len(asked) == first, asked

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


@pytest.mark.parametrize("given", ["nothing", "the API", "an SDK"])
def test_without_an_sdk_the_door_is_the_door_and_without_the_api_nothing_is_imported(
    tmp_path: Path, given: str
) -> None:
    traced = given == "an SDK"
    script = SCRIPT.format(blocked=given == "nothing", traced=traced, folder=tmp_path, sdk=SDK if traced else "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == (["POST /stripe"] * 3 + ["process stripe"] * 3 if traced else [])


async def test_deliveries_at_once_keep_their_contexts_apart(stripe: Inbox, spans: Spans) -> None:
    """Commits are shared, spans are not."""
    stripe.on("stripe", "*")(lambda event: None)
    async with stripe.lifespan():
        await asyncio.gather(*(deliver(stripe, "stripe", stripe_body(f"evt_{n}")) for n in range(20)))
        await drain(stripe)
    doors = {facts(one)["messaging.message.id"]: context(one) for one in spans.named("POST /stripe")}
    work = {facts(one)["messaging.message.id"]: links(one) for one in spans.named("process stripe")}
    assert len(doors) == 20 and work == {event: [("delivery", door)] for event, door in doors.items()}
