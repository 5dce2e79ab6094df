"""Fixtures of the tests of logs, metrics and traces."""

import io
from collections.abc import Callable, Iterator

import pytest

from oncehook import Inbox
from oncehook.observability import signals
from tests.support.spans import Spans, trace_with


@pytest.fixture
def log_to_stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., io.StringIO]]:
    """Write log lines to a stream, as in a process of Oncehook."""
    for name in ("_log", "_threshold", "_json_stream"):
        monkeypatch.setattr(signals, name, getattr(signals, name))

    def write(format: str = "json", level: str = "debug") -> io.StringIO:
        stream = io.StringIO()
        signals.configure(level, format, stream)
        return stream

    yield write


@pytest.fixture
def stripe_inbox(make_inbox: Callable[..., Inbox]) -> Inbox:
    """An inbox with the source stripe, which accepts invoices."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], types=["invoice.*"])
    return inbox


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans of this test."""
    yield trace_with(monkeypatch)


@pytest.fixture
def stripe(make_inbox: Callable[..., Inbox], spans: Spans) -> Inbox:
    """An inbox that is traced."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox
