"""Merged answers of shards."""

from oncehook.model.rows import TenantCounts
from oncehook.model.statistics import Lag, ReceiptCount, SourceTotals, WorkCount
from oncehook.store import merging


def test_rows_with_equal_keys_are_added_up() -> None:
    one, two = (
        ReceiptCount("app", "main", "failed", 2, "2026-01-01"),
        ReceiptCount("app", "main", "failed", 3, "2026-02-01"),
    )
    other = ReceiptCount("app", "main", "received", 1, "2026-01-01")
    merge = merging.summed("receipts", greatest=["last_received_at"])
    assert merge([[one], [two, other]]) == [ReceiptCount("app", "main", "failed", 5, "2026-02-01"), other]
    assert merging.summed(greatest=["lag"])([[Lag("app", "main", 1.0)], [Lag("app", "main", 3.0)]]) == [
        Lag("app", "main", 3.0)
    ]


def test_numbers_are_added_up() -> None:
    assert merging.total([1, 2]) == 3
    assert merging.totals([(1, 2), (3, 4)]) == (4, 6)
    assert merging.added([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 3, "b": 3}
    assert merging.struct_total([TenantCounts(1, 2, 3, 4), TenantCounts(1, 1, 1, 1)]) == TenantCounts(2, 3, 4, 5)


def test_lists_are_joined() -> None:
    assert merging.concatenated([[1, 2], [2]]) == [1, 2, 2]
    assert merging.unique([["b", "a"], ["a"]]) == ["a", "b"]
    assert merging.joined(["x", "y"]) == "x/y"


def test_totals_of_sources_have_the_newest_arrival() -> None:
    one = SourceTotals([WorkCount("app", "main", 1)], [], {"app": "2026-01-01"})
    two = SourceTotals([WorkCount("app", "main", 2)], [WorkCount("x", "main", 1)], {"app": "2026-02-01"})
    assert merging.source_totals([one, two]) == SourceTotals(
        [WorkCount("app", "main", 3)], [WorkCount("x", "main", 1)], {"app": "2026-02-01"}
    )
