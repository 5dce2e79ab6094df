"""Companions start and stop with a mounted inbox."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.model.errors import OncehookError
from oncehook.runtime.companion import stop_all

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


class Recorder:
    """A companion that records its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def start(self) -> None:
        self.calls.append(f"start {self.name}")

    async def stop(self) -> None:
        self.calls.append(f"stop {self.name}")


async def test_a_companion_starts_and_stops_with_its_inbox(make_inbox: Callable[..., Inbox]) -> None:
    calls: list[str] = []
    inbox = make_inbox()
    inbox._runtime.attach(Recorder("dashboard", calls))
    assert calls == []
    async with inbox.lifespan():
        assert calls == ["start dashboard"]
    assert calls == ["start dashboard", "stop dashboard"]


async def test_a_companion_of_a_running_inbox_starts_immediately(make_inbox: Callable[..., Inbox]) -> None:
    calls: list[str] = []
    inbox = make_inbox()
    async with inbox.lifespan():
        inbox._runtime.attach(Recorder("dashboard", calls))
        assert calls == ["start dashboard"]


async def test_a_companion_does_not_start_if_a_command_runs_the_process(make_inbox: Callable[..., Inbox]) -> None:
    calls: list[str] = []
    inbox = make_inbox()
    inbox._runtime.is_mounted = False
    inbox._runtime.attach(Recorder("dashboard", calls))
    async with inbox.lifespan():
        assert calls == []


@pytest.mark.without_schema
async def test_companions_stop_if_the_start_of_the_inbox_fails(make_inbox: Callable[..., Inbox]) -> None:
    calls: list[str] = []
    inbox = make_inbox(migrate="never")
    inbox._runtime.attach(Recorder("dashboard", calls))
    with pytest.raises(OncehookError):
        await inbox.start()
    assert calls == ["start dashboard", "stop dashboard"]


async def test_all_companions_stop_in_order(database: str) -> None:
    calls: list[str] = []
    await stop_all([Recorder("first", calls), Recorder("second", calls)])
    assert calls == ["stop first", "stop second"]
