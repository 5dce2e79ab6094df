"""The overview in requests and responses."""

import msgspec

from oncehook.web.api.schemas.overview import OverviewQuery, OverviewState, Percentiles
from oncehook.web.overview import RANGES, SERIES
from tests.support.api_schemas import assert_rejects, schema_of


def test_query_knows_every_range_of_the_overview_and_starts_with_an_hour() -> None:
    assert msgspec.convert({}, OverviewQuery).range == "1h"
    for name in RANGES:
        assert msgspec.convert({"range": name}, OverviewQuery).range == name
    assert_rejects(OverviewQuery, {"range": "30d"})


def test_state_has_every_series_and_may_have_no_latency() -> None:
    assert set(SERIES) <= set(OverviewState.__struct_fields__)
    assert set(schema_of(OverviewState)["required"]) == set(OverviewState.__struct_fields__)


def test_latencies_are_the_three_percentiles() -> None:
    assert msgspec.to_builtins(Percentiles(0.001, 0.01, 0.1)) == {"p50": 0.001, "p95": 0.01, "p99": 0.1}
