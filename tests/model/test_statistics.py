"""The rows of statistics."""

import inspect

import msgspec
import pytest

from oncehook.model import statistics
from oncehook.model.rows import QueryRow
from oncehook.model.statistics import SourceTotals, WorkCount

ROWS = [cls for _, cls in inspect.getmembers(statistics, inspect.isclass) if cls.__module__ == statistics.__name__]


@pytest.mark.parametrize("cls", ROWS, ids=lambda cls: cls.__name__)
def test_every_row_is_immutable_and_described(cls: type[msgspec.Struct]) -> None:
    assert issubclass(cls, QueryRow) and cls.__struct_config__.frozen and (cls.__doc__ or "").endswith(".")


def test_totals_as_json_have_the_counts_of_each_source_and_consumer() -> None:
    totals = SourceTotals([WorkCount("stripe", "ledger", 2)], [], {})
    assert totals.as_json()["waiting"] == [{"source": "stripe", "consumer": "ledger", "number": 2}]
