"""Every database implements the protocols for operators."""

import pytest

from oncehook.store import operator_protocols
from oncehook.store.postgres.retention import PostgresPruning
from oncehook.store.sqlite.retention import SqlitePruning
from oncehook.store.store import Store
from tests.support.stores import assert_implements

PARTS = {
    "receipts": operator_protocols.ReceiptStore,
    "operations": operator_protocols.OperationStore,
    "stats": operator_protocols.StatStore,
    "retention": operator_protocols.RetentionStore,
    "rejections": operator_protocols.RejectionStore,
    "alerts": operator_protocols.AlertStore,
}


@pytest.mark.parametrize("name", PARTS)
def test_part_of_the_store_implements_its_protocol(closed_store: Store, name: str) -> None:
    assert_implements(getattr(closed_store, name), PARTS[name])


@pytest.mark.parametrize("pruning", [PostgresPruning, SqlitePruning])
def test_pruning_of_each_database_implements_its_protocol(pruning: type[object]) -> None:
    missing = {name for name in vars(operator_protocols.Pruning) if name[0] != "_" and not hasattr(pruning, name)}
    assert missing == set()


def test_start_pruning_is_not_a_coroutine(closed_store: Store) -> None:
    """`async with store.retention.start_pruning()` needs no await."""
    assert hasattr(closed_store.retention.start_pruning(), "__aenter__")
