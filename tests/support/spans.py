"""Recorded spans, and what tests compare of them."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from oncehook.observability import tracing

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans(InMemorySpanExporter):
    """The finished spans, by name."""

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def links_of(span: ReadableSpan) -> list[tuple[str, tuple[int, int]]]:
    return [
        (str((one.attributes or {})["oncehook.link"]), (one.context.trace_id, one.context.span_id))
        for one in span.links
    ]


def trace_with(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> Spans:
    spans, provider = Spans(), TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(tracing, "active", tracing.Tracing(provider))
    return spans


def all_text(spans: Spans) -> str:
    return "".join(span.to_json() for span in spans.get_finished_spans())
