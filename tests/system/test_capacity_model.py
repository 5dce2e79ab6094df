"""The capacity model: what a rate of events needs follows from the measured figures."""

from dataclasses import replace

import pytest

from bench.capacity_model import (
    DATABASE_CORES,
    RATES,
    UTILIZATION,
    Figures,
    cost_per_million,
    largest_rate,
    load_figures,
    plan,
)


@pytest.fixture
def figures() -> Figures:
    """Round figures, so that the expected values can be computed by hand."""
    return replace(
        load_figures(),
        accept_cpu_us=60.0,
        accept_server_us=60.0,
        process_cpu_us=120.0,
        process_server_us=240.0,
        batch_cpu_us=30.0,
        batch_server_us=60.0,
        receipt_bytes=1000.0,
        payload_bytes=1500.0,
        wal_bytes=5000.0,
    )


def test_cores_follow_from_the_cpu_of_an_event_and_the_utilization(figures: Figures) -> None:
    needs = plan(figures, 10_000)
    assert needs.receiver_cores == pytest.approx(1.0)  # 10,000 × 60 µs at 60 %
    assert needs.worker_cores == pytest.approx(2.0)
    assert needs.database_cores == pytest.approx(5.0)
    assert needs.wal_megabytes_per_second == pytest.approx(50.0)
    assert needs.stored_gigabytes == pytest.approx(10_000 * 86_400 * 30 * 2500 / 1e9)


def test_batch_handlers_need_fewer_cores(figures: Figures) -> None:
    single, batch = plan(figures, 10_000), plan(figures, 10_000, batch=True)
    assert batch.worker_cores == pytest.approx(single.worker_cores / 4)
    assert batch.database_cores == pytest.approx(2.0)


def test_a_shard_is_added_when_one_database_is_not_enough(figures: Figures) -> None:
    limit = largest_rate(figures, DATABASE_CORES)
    assert limit == pytest.approx(DATABASE_CORES * UTILIZATION * 1e6 / 300)
    assert [plan(figures, int(limit * share)).shards for share in (0.5, 0.99, 1.01, 2.5)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("rate", "step"),
    [
        (10, "one process"),
        (4_000, "several processes, one PostgreSQL"),
        (10_000, "several hosts, one PostgreSQL"),
        (100_000, "4 shards"),
    ],
)
def test_each_rate_has_the_smallest_setup_that_carries_it(figures: Figures, rate: int, step: str) -> None:
    assert plan(figures, rate).step == step


def test_a_million_events_cost_what_their_cpu_and_bytes_cost(figures: Figures) -> None:
    cost = cost_per_million(figures)
    assert (cost.receiver_core_seconds, cost.worker_core_seconds, cost.database_core_seconds) == (60, 120, 300)
    assert cost.gigabytes == pytest.approx(2.5)
    assert cost.dollars == pytest.approx(480 / 0.6 / 3600 * 0.04 + 0.25)


def test_committed_figures_give_a_plan_for_every_rate() -> None:
    plans = [plan(load_figures(), rate) for rate in RATES]
    assert all(needs.receiver_cores > 0 and needs.database_cores > 0 for needs in plans)
    assert [needs.shards for needs in plans] == sorted(needs.shards for needs in plans)
