"""What a process knows of its door: bounded, and only by names of our own."""

import pytest

from oncehook import Inbox
from oncehook.observability.meter import BOUNDS, Meter, percentiles
from oncehook.testing import deliver, post
from tests.support.events import stripe_body


def test_percentiles_are_right_to_a_bucket_of_latencies() -> None:
    assert percentiles({}) is None
    meter = Meter()
    for n in range(1, 101):
        meter.acked("stripe", n / 1000)
    counts = {bucket: number for (_, bucket), number in meter.unwritten_acks.items()}
    found = percentiles(counts)
    assert found is not None
    for name, exact in (("p50", 0.050), ("p95", 0.095), ("p99", 0.099)):
        assert exact / 1.2 <= found[name] <= exact * 1.2
    assert percentiles({len(BOUNDS): 3}) == dict.fromkeys(("p50", "p95", "p99"), BOUNDS[-1])


def test_the_memory_of_a_busy_receiver_is_bounded() -> None:
    meter = Meter()
    for n in range(20_000):
        meter.acked("stripe", n / 100)
        meter.refused("stripe", "bad_signature", "no")
    assert len(meter.unwritten_acks) <= len(BOUNDS) + 1 and meter.unwritten_acks.total() == 20_000
    assert meter.unwritten == {("stripe", "bad_signature"): 20_000}
    assert meter.last_refused["stripe"].reason == "bad_signature"


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_the_door_counts_what_it_refuses_and_no_name_is_a_strangers(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await deliver(inbox, "stripe", stripe_body("evt_2"), secret="whsec_wrong")
    for n in range(20):
        await post(inbox, f"strange-{n}", b"{}", {})
    assert set(inbox._runtime.reception.meter.last_refused) == {"stripe", "unknown"}
    assert inbox._runtime.reception.meter.unwritten == {
        ("stripe", "bad_signature"): 1,
        ("unknown", "unknown_source"): 20,
    }
    assert {source for source, _ in inbox._runtime.reception.meter.unwritten_acks} == {"stripe"}
