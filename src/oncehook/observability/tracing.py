"""OpenTelemetry traces, if its API is installed (`pip install 'oncehook[otel]'`). The spans:

POST /webhooks/stripe   one delivery at the receiver, from its first byte to the response
process stripe          an attempt at a receipt or a batch; linked to the deliveries of its events
perform send_mail       the call of an effect; linked to the delivery whose event requested it
POST                    an HTTP request to a target, which carries the span's `traceparent`

Processing is linked to its delivery and is not a child of it: it may run much later, and more than once. The context
of the delivery's span is stored in the receipt's headers. A sender's own `traceparent` becomes a link, never a parent.
No span has a payload, a secret, the path of a target or the text of an error.

Without the API, nothing of it is imported. Without an SDK, `active` stays None and no span is created: tracing costs
the receiver and the worker one comparison.
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
Respond = Callable[[], Coroutine[Any, Any, Response]]

CONTEXT_HEADER = "Oncehook-Traceparent"
"""The stored header with the context of the delivery's span.

ASGI passes header names in lower case, so no sender can set it.
"""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
SYSTEM = "oncehook"

active: "Tracing | None" = None
"""Set when an inbox starts, if the API is installed and an SDK is configured."""


def start() -> "Tracing | None":
    """Start tracing if an OpenTelemetry SDK is configured."""
    global active
    if active is None:
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # the proxy means: no SDK
            active = Tracing()
    return active


def trace_attempt(work: W) -> W:
    """Decorate a method that processes a receipt or a batch, which is its last positional argument."""

    @functools.wraps(work)
    def traced(self: Any, *args: Any, **options: Any) -> Any:
        working = work(self, *args, **options)
        if active is None:
            return working
        return active.attempt(working, [args[-1]] if isinstance(args[-1], Leased) else args[-1])

    return cast(W, traced)


class PayloadReader(Protocol):
    """Reads the payload of a receipt, with its headers."""

    async def payload(self, receipt: int) -> Any: ...


class Tracing:
    """Creates the spans, with `provider` or the tracer provider of the process."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        from opentelemetry import context, propagate, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._inject = propagate.inject
        self._extract = TraceContextTextMapPropagator().extract
        self._none = context.Context()  # starts a new trace, whatever span is current
        self._tracer = trace.get_tracer("oncehook", tracer_provider=provider)

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def deliver(self, respond: Respond, name: str, delivery: Delivery, *, known: bool) -> Response:
        """Respond to a delivery in a span. With `known`, `name` is a source: senders must not choose span names.

        The span is not made current: deliveries share commits, so the work in a commit belongs to many of them.
        """
        try:
            span = self._tracer.start_span("HTTP", None, self._trace.SpanKind.SERVER)
        except Exception:  # a failing sampler must not fail a delivery
            span = self._trace.INVALID_SPAN
        if not span.is_recording():
            return await respond()
        attributes: dict[str, Any] = {}
        with suppress(Exception):
            attributes.update(self._describe_delivery(span, name, delivery, known=known))
        try:
            response = await respond()
            with suppress(Exception):
                attributes.update(_response_attributes(response))
        finally:
            with suppress(Exception):
                span.set_attributes(attributes)
                if attributes.get("http.response.status_code", 0) >= 500:
                    span.set_status(self._trace.StatusCode.ERROR)
            _end(span)
        return response

    def _describe_delivery(self, span: "Span", name: str, delivery: Delivery, *, known: bool) -> dict[str, Any]:
        """Name the span, link it to the sender's, store its context with the delivery, and return its attributes."""
        method = delivery.method if delivery.method in METHODS else "_OTHER"
        attributes = {"http.request.method": method, "url.scheme": delivery.scheme}
        title = method.replace("_OTHER", "HTTP")
        if known:
            route = delivery.path.rstrip("/")
            attributes.update({"http.route": route, **_messaging_attributes(name)})
            title = f"{title} {route}"
        span.update_name(title)
        if b"traceparent" in delivery.headers and b"traceparent" not in delivery.repeated:
            sender = self._context_of(delivery.headers[b"traceparent"].decode("latin-1"))
            if sender is not None:
                span.add_link(sender, {"oncehook.link": "sender"})
        delivery.headers[CONTEXT_HEADER.encode()] = _as_text(span.get_span_context()).encode()
        return attributes

    # -- processing -----------------------------------------------------------------------------------------------

    async def attempt(self, working: Coroutine[Any, Any, T], held: Sequence[Leased]) -> T:
        """Run an attempt in a new trace. Its span is current while it runs, and gets the outcome once it settles."""
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
                self._set_error(span, result.error.partition(":")[0])
        elif result is None:
            span.set_attribute("oncehook.outcome", "not settled")  # released, or the lease was lost
        else:
            span.set_attribute("oncehook.outcome", "processed" if result else "split")  # each event runs by itself

    def _describe_attempt(self, span: "Span", held: Sequence[Leased]) -> None:
        first = held[0]
        span.set_attributes({"messaging.operation.type": "process", **_messaging_attributes(first.source)})
        span.set_attribute("oncehook.consumer", first.consumer)
        if len(held) > 1:
            span.set_attribute("messaging.batch.message_count", len(held))
        else:
            facts = {"messaging.message.id": first.event_id, "oncehook.event.type": first.type}
            span.set_attributes({**facts, "oncehook.receipt": first.receipt, "oncehook.attempt": first.attempt})
        for leased in held:
            self._link_delivery(span, msgspec.json.decode(leased.headers or "{}"))

    async def run_effect(self, call: Callable[[], Awaitable[T]], leased: LeasedEffect, payloads: PayloadReader) -> T:
        """Run the call of an effect in a span. The delivery's context is read only if the span is recorded."""
        target = leased.target if leased.kind != "http" else _origin(leased.target)
        with self._span(f"perform {target}", self._trace.SpanKind.CONSUMER) as span:
            if span.is_recording():
                with suppress(Exception):  # the span may lack attributes or the link
                    span.set_attributes({"messaging.operation.type": "process", **_messaging_attributes(leased.source)})
                    span.set_attributes({"messaging.destination.name": target, "oncehook.effect.kind": leased.kind})
                    span.set_attributes({"oncehook.effect.id": leased.id, "oncehook.receipt": leased.receipt})
                    span.set_attribute("oncehook.attempt", leased.attempt)
                    self._link_delivery(span, (await payloads.payload(leased.receipt)).headers)
            return await call()

    def _link_delivery(self, span: "Span", headers: Mapping[str, str]) -> None:
        context = self._context_of(headers[CONTEXT_HEADER]) if CONTEXT_HEADER in headers else None
        if context is not None:
            span.add_link(context, {"oncehook.link": "delivery"})

    # -- outgoing requests ------------------------------------------------------------------------------------------

    async def post(
        self, url: str, headers: Mapping[str, str], request: Callable[[Mapping[str, str]], Awaitable[T]]
    ) -> T:
        """Send a request to a target in a span. The span's context replaces the trace headers of the sender."""
        with self._span("POST", self._trace.SpanKind.CLIENT, child=True) as span:
            context: dict[str, str] = {}
            if span.get_span_context().is_valid:
                self._inject(context)
                passed_on = {name: value for name, value in headers.items() if name.lower() not in _TRACE_HEADERS}
                headers = {**passed_on, **context}
            if span.is_recording():
                span.set_attributes({"http.request.method": "POST", **_server(url)})
            response = await request(headers)
            status = getattr(response, "status", None)
            if status is not None:
                span.set_attribute("http.response.status_code", status)
                if status >= 400:
                    self._set_error(span, str(status))
            return response

    # -- spans ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _span(self, name: str, kind: Any, *, child: bool = False) -> "Iterator[Span]":
        """Make a span current, if the SDK accepts it. The span gets the class of an error, never its text."""
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
            span.set_attribute("oncehook.outcome", "released")
            raise
        except BaseException as error:
            self._set_error(span, type(error).__name__)
            raise
        finally:
            _end(span)

    def _set_error(self, span: "Span", error_type: str) -> None:
        span.set_attribute("error.type", error_type)
        span.set_status(self._trace.StatusCode.ERROR)

    def _context_of(self, traceparent: str) -> "SpanContext | None":
        context = self._trace.get_current_span(
            self._extract({"traceparent": traceparent}, self._none)
        ).get_span_context()
        return context if context.is_valid else None


# -- attributes -----------------------------------------------------------------------------------------------------

_TRACE_HEADERS = frozenset({"traceparent", "tracestate", "baggage"})


def _messaging_attributes(source: str) -> dict[str, str]:
    return {"messaging.system": SYSTEM, "messaging.destination.name": source, "oncehook.source": source}


def _response_attributes(response: Response) -> dict[str, Any]:
    """Return span attributes from the response to a delivery."""
    status, body, _ = response
    attributes: dict[str, Any] = {"http.response.status_code": status}
    if not body.startswith(b"{"):
        return attributes
    content = msgspec.json.decode(body)
    if "error" in content:
        return {**attributes, "error.type": content["error"]["code"]}
    names = {"status": "oncehook.outcome", "event_id": "messaging.message.id", "receipt": "oncehook.receipt"}
    return attributes | {name: content[key] for key, name in names.items() if key in content}


def _as_text(context: "SpanContext") -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _server(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return {"server.address": parts.hostname or "", "server.port": port, "url.scheme": parts.scheme}
    except ValueError:
        return {}


def _origin(url: str) -> str:
    """Return the origin of a URL. Its path and query may hold secrets."""
    server = _server(url)
    return f"{server['url.scheme']}://{server['server.address']}:{server['server.port']}" if server else "http"


def _end(span: "Span") -> None:
    with suppress(Exception):  # an error of an exporter must not fail the work
        span.end()
