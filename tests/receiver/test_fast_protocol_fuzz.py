"""The fast protocol and plain ASGI give the same answers and store the same rows, whatever bytes arrive."""

import os
import time
from typing import Any

import pytest

from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol
from proof.results import write_result
from tests.support.counts import COMPARED, count
from tests.support.edge.grammar import Pause, make_connection
from tests.support.edge.run import Result, compare_alone, explain, run, shrink

pytestmark = [pytest.mark.anyio, pytest.mark.system]

SEED = int(os.environ.get("ONCEHOOK_FUZZ_SEED", "20261117"))


async def assert_same_answers(seed: int, requests: int) -> Result:
    result = await run(seed, requests)
    if result.differences:
        pytest.fail(explain(await shrink(result.differences[0])))
    return result


async def test_fast_protocol_and_plain_asgi_give_the_same_answers() -> None:
    result = await assert_same_answers(SEED, 3_000)
    statuses = {status.split()[1] for status in result.answers}
    assert statuses >= {"100", "200", "202", "400", "401", "404", "405", "413", "415", "431"}, (
        "the grammar is too narrow"
    )
    assert result.answers["HTTP/1.1 202 Accepted"] > 500


@pytest.mark.torture
async def test_two_hundred_thousand_requests_get_the_same_answers() -> None:
    seed, results, started = int(time.time()), [], time.monotonic()
    for number in range(8):
        results.append(await assert_same_answers(seed + number, 25_000))
    answers: dict[str, int] = {}
    for status, number in [item for result in results for item in result.answers.items()]:
        answers[status.removeprefix("HTTP/1.1 ")] = answers.get(status.removeprefix("HTTP/1.1 "), 0) + number
    requests = sum(result.requests for result in results)
    assert requests >= 200_000
    count(COMPARED, requests)
    write_result(
        "http-fuzz",
        {
            "seeds": [result.seed for result in results],
            "connections": sum(result.connections for result in results),
            "requests": requests,
            "answers": answers,
            "differences": 0,
            "seconds": round(time.monotonic() - started, 1),
        },
    )


def keep_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query of a direct delivery has what follows a `#`."""
    decide = FastProtocol._may_be_direct

    def without_fragment(self: FastProtocol) -> bool:
        url, self.url = self.url, self.url.replace(b"#", b"")
        try:
            return decide(self)
        finally:
            self.url = url

    monkeypatch.setattr(FastProtocol, "_may_be_direct", without_fragment)


def ignore_earlier_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct response overtakes a response that waits for its commit."""
    decide = FastProtocol._may_be_direct

    def alone(self: FastProtocol) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(LimitedProtocol, "is_answered", lambda self: True)
            return decide(self)

    monkeypatch.setattr(FastProtocol, "_may_be_direct", alone)


def trailers_as_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast protocol reads a trailer as a header."""

    def on_header(self: FastProtocol, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    monkeypatch.setattr(FastProtocol, "on_header", on_header, raising=False)


def keep_closed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct response does not close the connection, though the client asks for it."""
    receive = FastProtocol._receive

    def receiving(self: FastProtocol, body: bytes) -> bool:
        parser: Any = self.parser
        self.parser = type("Parser", (), {"should_keep_alive": lambda _: True, "get_http_version": lambda _: "1.1"})()
        try:
            return receive(self, body)
        finally:
            self.parser = parser

    monkeypatch.setattr(FastProtocol, "_receive", receiving)


@pytest.mark.parametrize("plant", [keep_fragment, ignore_earlier_requests, trailers_as_headers, keep_closed_connection])
async def test_fuzzer_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    assert (await run(SEED, 3_000)).differences, plant.__doc__


async def test_difference_is_shrunk_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_fragment(monkeypatch)
    found = (await run(SEED, 3_000)).differences[0]
    smallest = await shrink(found)
    assert len(smallest.connection.steps) <= len(found.connection.pieces())
    text = explain(smallest)
    assert "#" in text and text.endswith(f"--seed {SEED} --case {found.connection.number}")
    again = make_connection(SEED, found.connection.number, int(time.time()))
    assert await compare_alone(again) is not None, "the command in the text must show the difference again"


def test_same_seed_makes_the_same_connection() -> None:
    one, two = (make_connection(7, 23, 1_800_000_000) for _ in range(2))
    assert one == two and one.pieces()
    assert any(step is Pause.QUIET for number in range(50) for step in make_connection(7, number, 0).steps)
