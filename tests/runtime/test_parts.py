"""Optional parts start in order after the store is open, and stop in the opposite order."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.runtime import parts as module
from oncehook.runtime.parts import start_parts, stop_parts

pytestmark = pytest.mark.anyio


class Recorder:
    """A part that records its calls, and fails to start on request."""

    def __init__(self, name: str, calls: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.calls = calls
        self.fails = fails

    async def start(self) -> None:
        if self.fails:
            raise ConfigurationError(f"{self.name} cannot start")
        self.calls.append(f"start {self.name}")

    async def stop(self) -> None:
        self.calls.append(f"stop {self.name}")


async def test_parts_start_in_order_and_stop_in_the_opposite_order() -> None:
    calls: list[str] = []
    parts = [Recorder("spool", calls), Recorder("queue", calls)]
    await start_parts(parts)
    await stop_parts(parts)
    assert calls == ["start spool", "start queue", "stop queue", "stop spool"]


async def test_parts_that_started_stop_if_another_fails_to_start() -> None:
    calls: list[str] = []
    with pytest.raises(ConfigurationError):
        await start_parts([Recorder("spool", calls), Recorder("queue", calls, fails=True)])
    assert calls == ["start spool", "stop queue", "stop spool"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_an_inbox_whose_part_fails_to_start_closes_its_store_and_can_start_again(
    make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    queue = Recorder("queue", calls, fails=True)
    monkeypatch.setattr("oncehook.runtime.make_parts", lambda _: [queue])  # no part of our own fails at will
    inbox = make_inbox()
    with pytest.raises(ConfigurationError, match="queue cannot start"):
        await inbox._runtime.start()
    assert not inbox._runtime.is_running
    queue.fails = False
    async with inbox.lifespan():
        assert calls[-1] == "start queue"
    assert calls[-1] == "stop queue"


def test_an_inbox_without_such_settings_has_no_parts() -> None:
    assert module.make_parts(Inbox("sqlite:///unused.db", fast_paths=False)._runtime) == []
