"""The cost of hostile deliveries: for every provider, steps and memory grow no faster than the size.

Steps are lines that the interpreter ran, counted, not seconds: sixteen times the input may take sixteen times the
steps, and a little more. What is built while a delivery is verified may be some times its size.
"""

import sys
import tracemalloc
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.families import each
from oncehook.providers.source import Source
from tests.support.providers import NOW, SENDERS, Sender, changed


def _by_kind() -> Iterator[Any]:
    """Every sender. Further senders with the same kind of check run only as torture tests."""
    seen = set()
    for sender in SENDERS:
        verifier = sender.source().verifier
        assert verifier is not None
        checks = verifier.checks
        kind = tuple((type(one), one.find.__name__ if hasattr(one, "find") else "") for one in checks)
        yield pytest.param(sender, marks=[pytest.mark.torture] if kind in seen else [])
        seen.add(kind)


@pytest.fixture(scope="module", autouse=True)
def decoder() -> None:
    """Builds the decoder that is made once per process, so that no delivery pays for it."""
    each._bounded_decoder()


every = pytest.mark.parametrize("sender", list(_by_kind()), ids=str)
SMALL, LARGE = 16 * 1024, 256 * 1024
GROWTH = LARGE / SMALL
CONSTANT = 3_000
FORM = b"application/x-www-form-urlencoded"


def repeated(piece: bytes, before: bytes = b"", after: bytes = b"") -> Callable[[int], bytes]:
    return lambda size: before + piece * ((size - len(before) - len(after)) // len(piece)) + after


BODIES: dict[str, Callable[[int], bytes]] = {
    "brackets": repeated(b"["),
    "nested objects": repeated(b'{"a":'),
    "an endless text": repeated(b"\\", b'"'),
    "quotes": repeated(b'"'),
    "many keys": repeated(b'"a":1,', b"{", b'"b":2}'),
    "many elements": repeated(b"{},", b"[", b"{}]"),
    "a long text": repeated(b"a", b'{"id":"', b'"}'),
    "digits": repeated(b"9", b'{"id":', b"}"),
    "items": repeated(b'{"NotificationRequestItem":{"eventCode":"a","additionalData":{"hmacSignature":"a"}}},',
                      b'{"notificationItems":[', b"null]}"),
    "states": repeated(b'{"clientState":"a"},', b'{"value":[', b'{"clientState":"a"}]}'),
    "ampersands": repeated(b"&"),
    "fields": repeated(b"a=b&"),
    "percents": repeated(b"%"),
    "pairs": repeated(b"a|b%26", b"bt_payload=a&bt_signature="),
    "a payload": repeated(b"A", b"bt_signature=a|b&bt_payload="),
}  # fmt: skip
VALUES: dict[str, Callable[[int], bytes]] = {
    "commas": repeated(b","),
    "spaces": repeated(b" "),
    "signatures": repeated(b"v1=a,"),
    "dots": repeated(b"."),
    "letters": repeated(b"a"),
    "base64": repeated(b"QUFB", b"Basic "),
    "quoted": repeated(b"\\a", b'"'),
}
QUERIES = {"parameters": repeated(b"a=b&"), "escapes": repeated(b"%3A"), "hashes": repeated(b"bodySHA256=a&")}


def hostile(sender: Sender, size: int) -> Iterator[tuple[str, Delivery]]:
    """Every kind of large delivery. Its other parts are those of an authentic one."""
    genuine = sender.compose()
    for name, make in BODIES.items():
        for content_type in (genuine.headers[b"content-type"], FORM):
            headers = {**genuine.headers, b"content-type": content_type}
            yield f"{name} as {content_type.decode()}", changed(genuine, headers, body=make(size))
    header = (sender.header or "x-none").lower().encode()
    for name, make in VALUES.items():
        yield f"{name} in {header.decode()}", changed(genuine, {**genuine.headers, header: make(size)})
    for name, make in QUERIES.items():
        yield f"{name} in the query", Delivery(genuine.body, genuine.headers.items(), query=make(size))


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the steps of the interpreter."""
    steps = [0]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        steps[0] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)


def cost(source: Source, delivery: Delivery) -> int:
    assert source.verifier is not None
    with counted() as steps:
        refuse(source, delivery)
    return steps[0]


def refuse(source: Source, delivery: Delivery) -> None:
    assert source.verifier is not None
    try:
        source.verifier.verify(delivery, NOW)
    except Rejected:
        pass


@every
def test_steps_of_verify_grow_no_faster_than_the_input(sender: Sender) -> None:
    source = sender.source()
    large = dict(hostile(sender, LARGE))
    for name, delivery in hostile(sender, SMALL):
        allowed = 1.3 * GROWTH * cost(source, delivery) + CONSTANT
        assert cost(source, large[name]) <= allowed, name


READING_MOST = ("stripe", "mailgun", "adyen", "braintree")


@pytest.mark.parametrize("sender", [one for one in SENDERS if str(one) in READING_MOST], ids=str)
def test_memory_of_verify_is_a_few_times_the_input(sender: Sender) -> None:
    source = sender.source()
    for name, delivery in hostile(sender, LARGE):
        tracemalloc.start()
        try:
            refuse(source, delivery)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak <= 64 * LARGE, f"{name}: {peak / LARGE:.0f} times"


def test_steps_of_reading_xml_grow_no_faster_than_the_input() -> None:
    from oncehook.providers.expressions import NotReadable, TooDeep
    from oncehook.providers.xml import read_xml

    shapes = {
        "siblings": repeated(b"<a>b</a>", b"<x>", b"</x>"),
        "nested": repeated(b"<a>"),
        "text": repeated(b"a", b"<x>", b"</x>"),
        "entities": repeated(b"&amp;", b"<x>", b"</x>"),
        "a document type": repeated(b'<!ENTITY a "b">', b"<!DOCTYPE x [", b"]><x/>"),
    }
    for name, make in shapes.items():
        steps = []
        for size in (SMALL, LARGE):
            encoded = b64encode(make(size)).decode()
            with counted() as count:
                try:
                    read_xml(encoded)
                except (NotReadable, TooDeep):
                    pass
            steps.append(count[0])
        assert steps[1] <= 1.3 * GROWTH * steps[0] + CONSTANT, name
