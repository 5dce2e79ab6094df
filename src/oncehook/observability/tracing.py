"""OpenTelemetry traces, where its API is installed (`pip install 'oncehook[otel]'`): every span that is made.

POST /webhooks/stripe   the door: one delivery, from its first byte to the answer
process stripe          an attempt at a receipt, or at a batch; linked to the deliveries that brought the events
perform send_mail       an effect's call; linked to the delivery whose event asked for it
POST                    what is sent to a target, with its `traceparent`

Work is linked to its delivery and not a part of it: it may come much later, and again. The delivery's context is kept
with the receipt, among the headers. What a sender says of itself (`traceparent`) is a link at most, never a parent. No
span has a payload, a secret, a path of a target or an error's text.

Without the API nothing of it is imported. Without an SDK no span is made: `active` stays None, and the receiver and the
worker run without a span, after one comparison.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from oncehook.model.delivery import Delivery
from oncehook.model.effect import LeasedEffect
from oncehook.model.lease import Leased, Settled
from oncehook.model.retry import Postpone

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

T = TypeVar("T")
W = TypeVar("W", bound=Callable[..., Coroutine[Any, Any, Any]])
Response = tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]
Answer = Callable[[], Coroutine[Any, Any, Response]]

KEPT = "Oncehook-Traceparent"
"""The delivery's context among its kept headers. ASGI gives senders' names in lower case, so no sender can set it."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
SYSTEM = "oncehook"

active: "Tracing | None" = None
"""Set at the start of an inbox, where the API is installed and an SDK is set up."""


def start() -> "Tracing | None":
    """Trace from now on, if there is anybody to take spans: an SDK that was set up before this."""
    global active
    if active is None:
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # which stands for nobody
            active = Tracing()
    return active


def attempt(work: W) -> W:
    """For a method that works off a receipt, or many of them together: the last that it is given by position."""

    @functools.wraps(work)
    def traced(self: Any, *args: Any, **named: Any) -> Any:
        working = work(self, *args, **named)
        if active is None:
            return working
        return active.attempt(working, [args[-1]] if isinstance(args[-1], Leased) else args[-1])

    return cast(W, traced)


class Payloads(Protocol):
    """Where the headers of a receipt are."""

    async def payload(self, receipt: int) -> Any: ...


class Tracing:
    """Makes the spans, by the provider that is set for the process unless one is given."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        from opentelemetry import context, propagate, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._inject = propagate.inject
        self._extract = TraceContextTextMapPropagator().extract
        self._none = context.Context()  # a trace of its own, whatever ran where this was started
        self._tracer = trace.get_tracer("oncehook", tracer_provider=provider)

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def deliver(self, answer: Answer, name: str, delivery: Delivery, *, known: bool) -> Response:
        """Answer a delivery in a span of its own. `known`: `name` is a source; strangers must not name spans.

        The span is not made current: commits are shared, and what is done there belongs to many deliveries.
        """
        try:
            span = self._tracer.start_span("HTTP", None, self._trace.SpanKind.SERVER)
        except Exception:  # a failing sampler must not cost a delivery
            span = self._trace.INVALID_SPAN
        if not span.is_recording():
            return await answer()
        attributes: dict[str, Any] = {}
        with suppress(Exception):
            attributes.update(self._describe_delivery(span, name, delivery, known=known))
        try:
            response = await answer()
            with suppress(Exception):
                attributes.update(_answered(response))
        finally:
            with suppress(Exception):
                span.set_attributes(attributes)
                if attributes.get("http.response.status_code", 0) >= 500:
                    span.set_status(self._trace.StatusCode.ERROR)
            _end(span)
        return response

    def _describe_delivery(self, span: "Span", name: str, delivery: Delivery, *, known: bool) -> dict[str, Any]:
        """Name the span, link the sender's, and keep this one with the delivery. Returns its attributes."""
        method = delivery.method if delivery.method in METHODS else "_OTHER"
        attributes = {"http.request.method": method, "url.scheme": delivery.scheme}
        title = method.replace("_OTHER", "HTTP")
        if known:
            route = delivery.path.rstrip("/")
            attributes.update({"http.route": route, **_facts(name)})
            title = f"{title} {route}"
        span.update_name(title)
        if b"traceparent" in delivery.headers and b"traceparent" not in delivery.repeated:
            sender = self._context_of(delivery.headers[b"traceparent"].decode("latin-1"))
            if sender is not None:
                span.add_link(sender, {"oncehook.link": "sender"})
        delivery.headers[KEPT.encode()] = _as_text(span.get_span_context()).encode()
        return attributes

    # -- the work -------------------------------------------------------------------------------------------------

    async def attempt(self, working: Coroutine[Any, Any, T], held: Sequence[Leased]) -> T:
        """A span of its own for an attempt, current while it runs, with what came of it once that is settled."""
        first = held[0]
        with self._span(f"process {first.source}", self._trace.SpanKind.CONSUMER) as span:
            with suppress(Exception):
                if span.is_recording():
                    self._describe_attempt(span, held)
            result = await working
            with suppress(Exception):
                self._describe_result(span, result)
            return result

    def _describe_result(self, span: "Span", result: object) -> None:
        if isinstance(result, Settled):
            span.set_attributes({"oncehook.outcome": result.outcome, "oncehook.handler": result.handler or ""})
            if result.error is not None:
                self._failed(span, result.error.partition(":")[0])
        elif result is None:
            span.set_attribute("oncehook.outcome", "not kept")  # released, or the lease was lost
        else:
            span.set_attribute("oncehook.outcome", "processed" if result else "one by one")

    def _describe_attempt(self, span: "Span", held: Sequence[Leased]) -> None:
        first = held[0]
        span.set_attributes({"messaging.operation.type": "process", **_facts(first.source)})
        if len(held) > 1:
            span.set_attribute("messaging.batch.message_count", len(held))
        else:
            facts = {"messaging.message.id": first.event_id, "oncehook.event.type": first.type}
            span.set_attributes({**facts, "oncehook.receipt": first.receipt, "oncehook.attempt": first.attempt})
        for leased in held:
            self._link_delivery(span, msgspec.json.decode(leased.headers or "{}"))

    async def perform(self, call: Callable[[], Awaitable[T]], leased: LeasedEffect, payloads: Payloads) -> T:
        """A span for an effect's call. It asks for the delivery's context only if it is recorded."""
        target = leased.target if leased.kind != "http" else _origin(leased.target)
        with self._span(f"perform {target}", self._trace.SpanKind.CONSUMER) as span:
            if span.is_recording():
                with suppress(Exception):  # attributes or a link less
                    span.set_attributes({"messaging.operation.type": "process", **_facts(leased.source)})
                    span.set_attributes({"messaging.destination.name": target, "oncehook.effect.kind": leased.kind})
                    span.set_attributes({"oncehook.effect.id": leased.id, "oncehook.receipt": leased.receipt})
                    span.set_attribute("oncehook.attempt", leased.attempt)
                    self._link_delivery(span, (await payloads.payload(leased.receipt)).headers)
            return await call()

    def _link_delivery(self, span: "Span", headers: Mapping[str, str]) -> None:
        context = self._context_of(headers[KEPT]) if KEPT in headers else None
        if context is not None:
            span.add_link(context, {"oncehook.link": "delivery"})

    # -- going out ------------------------------------------------------------------------------------------------

    async def post(
        self, url: str, headers: Mapping[str, str], request: Callable[[Mapping[str, str]], Awaitable[T]]
    ) -> T:
        """A span for what is sent to a target. With it goes its context, in place of what the sender had sent."""
        with self._span("POST", self._trace.SpanKind.CLIENT, child=True) as span:
            own: dict[str, str] = {}
            if span.get_span_context().is_valid:
                self._inject(own)
                passed_on = {name: value for name, value in headers.items() if name.lower() not in _THEIRS}
                headers = {**passed_on, **own}
            if span.is_recording():
                span.set_attributes({"http.request.method": "POST", **_server(url)})
            answer = await request(headers)
            status = getattr(answer, "status", None)
            if status is not None:
                span.set_attribute("http.response.status_code", status)
                if status >= 400:
                    self._failed(span, str(status))
            return answer

    # -- spans ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _span(self, name: str, kind: Any, *, child: bool = False) -> "Iterator[Span]":
        """A span that is current, where there is anybody to take it. An error's class is told, its text never."""
        try:
            span = self._tracer.start_span(name, None if child else self._none, kind=kind)
        except Exception:
            span = self._trace.INVALID_SPAN
        if not span.get_span_context().is_valid:
            yield span
            return
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except (asyncio.CancelledError, Postpone):
            span.set_attribute("oncehook.outcome", "put back")
            raise
        except BaseException as error:
            self._failed(span, type(error).__name__)
            raise
        finally:
            _end(span)

    def _failed(self, span: "Span", what: str) -> None:
        span.set_attribute("error.type", what)
        span.set_status(self._trace.StatusCode.ERROR)

    def _context_of(self, told: str) -> "SpanContext | None":
        context = self._trace.get_current_span(self._extract({"traceparent": told}, self._none)).get_span_context()
        return context if context.is_valid else None


# -- words ----------------------------------------------------------------------------------------------------------

_THEIRS = frozenset({"traceparent", "tracestate", "baggage"})


def _facts(source: str) -> dict[str, str]:
    return {"messaging.system": SYSTEM, "messaging.destination.name": source, "oncehook.source": source}


def _answered(response: Response) -> dict[str, Any]:
    """What the sender is told, as attributes."""
    status, body, _ = response
    attributes: dict[str, Any] = {"http.response.status_code": status}
    if not body.startswith(b"{"):
        return attributes
    told = msgspec.json.decode(body)
    if "error" in told:
        return {**attributes, "error.type": told["error"]["code"]}
    names = {"status": "oncehook.outcome", "event_id": "messaging.message.id", "receipt": "oncehook.receipt"}
    return attributes | {name: told[word] for word, name in names.items() if word in told}


def _as_text(context: "SpanContext") -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _server(url: str) -> dict[str, Any]:
    try:
        to = urlsplit(url)
        port = to.port or (443 if to.scheme == "https" else 80)
        return {"server.address": to.hostname or "", "server.port": port, "url.scheme": to.scheme}
    except ValueError:
        return {}


def _origin(url: str) -> str:
    """As much of an address as may be told."""
    to = _server(url)
    return f"{to['url.scheme']}://{to['server.address']}:{to['server.port']}" if to else "http"


def _end(span: "Span") -> None:
    with suppress(Exception):  # an exporter's trouble is not the work's
        span.end()
