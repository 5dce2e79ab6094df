"""Windows of a table: together they have every row once."""

import pytest

from oncehook.store.fsck import STATEMENTS, WINDOWS
from oncehook.store.rows import FsckWindow
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_windows_have_every_row_once(store: Store) -> None:
    ids = sorted(await claim(store, *(f"evt_{number}" for number in range(7))))
    window: FsckWindow | None = None
    sizes, last = [], 0
    while (window := await store.fsck.window("receipts", window, 3, source=None, since=None)) is not None:
        assert window.parameters["after"] == last
        sizes.append(window.number)
        last = window.parameters["last"]
    assert sizes == [3, 3, 1] and last == ids[-1]


async def test_windows_of_entities_go_by_their_key(store: Store, rows: Rows) -> None:
    for number in range(5):
        scope = "stripe" if number < 3 else "stripe@search"
        values = f"('{scope}', 'invoice', 'in_{number}', {number} < 0, 'evt_1', 1)"
        rows(f"INSERT INTO webhook_entities (scope, kind, id, is_terminal, event_id, receipt_id) VALUES {values}")
    window: FsckWindow | None = None
    keys = []
    while (window := await store.fsck.window("entities", window, 2, source=None, since=None)) is not None:
        keys.append((window.parameters["last_scope"], window.parameters["last"], window.number))
        assert await store.fsck.find("entity", window) == []
    assert keys == [("stripe", "in_1", 2), ("stripe@search", "in_3", 2), ("stripe@search", "in_4", 1)]


async def test_every_statement_runs_on_an_empty_database(store: Store) -> None:
    empty = FsckWindow({"after": 0, "last": 0}, 0)
    whole = {"serial": None, "rejections": None, "partitions": None}
    for name in STATEMENTS.keys() - {"entity"}:
        parameters = {"most": 20} if name == "rejections" else {}
        assert await store.fsck.find(name, whole.get(name, empty), **parameters) == []
    for table in WINDOWS:
        assert await store.fsck.window(table, None, 10, source="stripe", since=None) is None
