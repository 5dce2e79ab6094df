"""`Bench`: the testing functions for synchronous tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import ConfigurationError, Event, Inbox, State
from oncehook.testing import (
    Bench,
)
from tests.support.work import fail_first_attempts


def test_bench_has_every_step_without_await(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    fail_first_attempts(inbox, 1)
    with Bench(inbox) as bench:
        answer = bench.deliver("stripe", type="invoice.paid")
        assert [row.status for row in bench.drain()] == [State.RETRYING]
        bench.advance("1h")
        assert [row.status for row in bench.drain()] == [State.PROCESSED]
        assert bench.replay(answer) == 1
        assert [row.attempts for row in bench.crash()] == [1]
        assert bench.receipt(answer).status is State.PROCESSING
        assert not bench.prune()
    assert not inbox._runtime.is_running


def test_bench_that_cannot_start_raises_the_error_and_stops_its_thread(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'x.db'}", worker=False)

    @inbox.on("unknown", "*")
    async def handle(event: Event) -> None: ...

    bench = Bench(inbox)
    with pytest.raises(ConfigurationError, match="unknown"), bench:
        pass
    assert not bench._thread.is_alive()
