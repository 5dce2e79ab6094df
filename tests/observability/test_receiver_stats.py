"""The receiver's counts: percentiles, bounded memory, and configured names only."""

import pytest

from oncehook import Inbox
from oncehook.observability.receiver_stats import BOUNDS, ReceiverStats, percentiles
from oncehook.testing import deliver, post
from tests.support.events import stripe_body


def test_percentiles_are_exact_to_one_bucket() -> None:
    assert percentiles({}) is None
    stats = ReceiverStats()
    for n in range(1, 101):
        stats.record_ack("stripe", n / 1000)
    counts = {bucket: number for (_, bucket), number in stats.unwritten_acks.items()}
    measured = percentiles(counts)
    assert measured is not None
    for name, exact in (("p50", 0.050), ("p95", 0.095), ("p99", 0.099)):
        assert exact / 1.2 <= measured[name] <= exact * 1.2
    assert percentiles({len(BOUNDS): 3}) == dict.fromkeys(("p50", "p95", "p99"), BOUNDS[-1])


def test_latencies_are_spread_evenly_between_the_bounds_of_their_bucket() -> None:
    for bucket, lowest, highest in ((0, 0.0, BOUNDS[0]), (1, BOUNDS[0], BOUNDS[1]), (40, BOUNDS[39], BOUNDS[40])):
        measured = percentiles({bucket: 100})
        assert measured == pytest.approx(
            {f"p{part}": lowest + (highest - lowest) * part / 100 for part in (50, 95, 99)}
        )


def test_memory_of_a_busy_receiver_is_bounded() -> None:
    stats = ReceiverStats()
    for n in range(20_000):
        stats.record_ack("stripe", n / 100)
        stats.record_rejection("stripe", "bad_signature", "no")
    assert len(stats.unwritten_acks) <= len(BOUNDS) + 1 and stats.unwritten_acks.total() == 20_000
    assert stats.unwritten_rejections == {("stripe", "bad_signature"): 20_000}
    assert stats.last_rejections["stripe"].reason == "bad_signature"


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_receiver_counts_rejections_under_configured_names_only(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await deliver(inbox, "stripe", stripe_body("evt_2"), secret="whsec_wrong")
    for n in range(20):
        await post(inbox, f"unknown-{n}", b"{}", {})
    assert set(inbox._runtime.reception.stats.last_rejections) == {"stripe", "unknown"}
    assert inbox._runtime.reception.stats.unwritten_rejections == {
        ("stripe", "bad_signature"): 1,
        ("unknown", "unknown_source"): 20,
    }
    assert {source for source, _ in inbox._runtime.reception.stats.unwritten_acks} == {"stripe"}
