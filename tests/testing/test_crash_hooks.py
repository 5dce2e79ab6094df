"""Crash points in this process: a wrapped function, and the statements that are recognized."""

import types

import pytest

from oncehook.testing import crash_hooks
from oncehook.testing.crash_hooks import Trigger, install
from oncehook.testing.crash_points import AFTER, BEFORE, Call, CrashPoint, InHandler, find

pytestmark = pytest.mark.anyio


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with a function, which the hooks may wrap."""
    made = types.ModuleType("crashing")

    async def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    made.double = double  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "crashing", made)
    return made


async def test_fault_happens_once_and_only_after_it_is_armed(module: types.ModuleType) -> None:
    faults: list[str] = []
    where = Call("crashing:double", AFTER, needs_result=True, contains="7")
    trigger, _ = install(CrashPoint("X1", "work", "", where, where), "sqlite", lambda: faults.append("x"))
    assert await module.double([7]) == [14] and faults == [], "it is not armed"
    trigger.is_armed = True
    assert await module.double([]) == await module.double([]) and faults == [], "no result, and no 7"
    assert await module.double([7]) == [14] and faults == ["x"]
    assert await module.double([7]) == [14] and faults == ["x"] and trigger.has_fired


async def test_fault_before_a_call_keeps_it_from_running(module: types.ModuleType) -> None:
    def fail() -> None:
        raise ConnectionError("lost")

    where = Call("crashing:double", BEFORE)
    trigger, _ = install(CrashPoint("X1", "work", "", where, where), "postgres", fail)
    trigger.is_armed = True
    with pytest.raises(ConnectionError):
        await module.double([7])


def test_step_of_a_handler_reaches_its_point() -> None:
    faults: list[str] = []
    trigger, reach = install(find("W6"), "sqlite", lambda: faults.append("x"))
    assert isinstance(find("W6").sqlite, InHandler)
    trigger.is_armed = True
    reach("started")
    assert faults == []
    reach("wrote")
    assert faults == ["x"]


def test_point_that_does_not_exist_on_a_database_is_an_error() -> None:
    with pytest.raises(ValueError, match="W10 does not exist on postgres: An effect key"):
        install(find("W10"), "postgres", Trigger(lambda: None).fire)


def test_statement_is_recognized_by_a_part_without_parameters() -> None:
    assert crash_hooks._marker("postgres", "finish") == "CALL webhook_finish("
    assert crash_hooks._marker("sqlite", "claim_payload").startswith("INSERT INTO webhook_payloads (receipt_id")
    assert crash_hooks._marker("sqlite", "COMMIT") == "COMMIT"
