"""Running the statements of a transaction without an event loop, and on each database."""

from collections.abc import Generator

import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.executor import Run, drive
from oncehook.store.store import Store
from tests.support.events import Rows

pytestmark = pytest.mark.anyio

AUDIT = {"actor": "jane", "action": "test", "detail": "{}"}


class Suspension:
    """An awaitable that suspends its coroutine once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def test_drive_returns_the_result_of_a_coroutine() -> None:
    async def work() -> int:
        return 7

    assert drive(work()) == 7


def test_drive_raises_the_error_of_a_coroutine() -> None:
    async def work() -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        drive(work())


def test_drive_rejects_a_coroutine_that_suspends() -> None:
    async def work() -> None:
        await Suspension()

    with pytest.raises(RuntimeError, match="only await its own statements"):
        drive(work())


async def test_write_commits_one_statement(store: Store, rows: Rows) -> None:
    await store.database.executor.write("audit", AUDIT)
    assert rows("SELECT actor FROM webhook_audit") == [("jane",)]


async def test_transaction_commits_all_statements(store: Store, rows: Rows) -> None:
    async def work(run: Run) -> str:
        await run("audit", AUDIT)
        await run("audit", AUDIT | {"actor": "joe"})
        return "done"

    assert await store.database.executor.transaction(work) == "done"
    assert rows("SELECT actor FROM webhook_audit ORDER BY id") == [("jane",), ("joe",)]


async def test_transaction_is_rolled_back_if_its_work_raises(store: Store, rows: Rows) -> None:
    async def work(run: Run) -> None:
        await run("audit", AUDIT)
        raise ValueError("after the first statement")

    with pytest.raises(ValueError, match="after the first statement"):
        await store.database.executor.transaction(work)
    assert rows("SELECT * FROM webhook_audit") == []


async def test_optional_conditions_apply_only_with_their_parameter(store: Store) -> None:
    executor = store.database.executor
    for _ in range(3):
        await executor.write("audit", AUDIT)
    entries = await executor.read("audit_entries", {"limit": 10})
    assert len(entries) == 3
    assert len(await executor.scan("audit_entries", {"limit": 10, "before": entries[0]["id"]})) == 2


async def test_error_of_the_driver_becomes_unavailable_and_other_errors_do_not(store: Store, rows: Rows) -> None:
    rows("DROP TABLE webhook_noops")
    with pytest.raises(StoreUnavailable, match="webhook_noops"):
        await store.effects.noops(1)
    assert store.database.executor.as_unavailable(ValueError("a bug")) is None
