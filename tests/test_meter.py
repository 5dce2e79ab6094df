"""What a process knows of its door: bounded, and only by names of our own."""

from datetime import UTC, datetime

import pytest

from oncehook import Inbox
from oncehook.clock import Clock
from oncehook.meter import LATENCIES, MINUTES, Meter
from oncehook.testing import deliver, post
from tests.events import stripe_body


class Moved(Clock):
    """A clock that a test moves."""

    at = 1_800_000_000.0

    def now(self) -> float:
        return self.at

    def datetime(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


def test_percentiles_are_of_the_last_acks_of_a_source_or_of_all() -> None:
    meter = Meter()
    assert meter.percentiles() is None
    for n in range(100):
        meter.acked.append(("stripe", n / 1000))
    meter.acked.append(("github", 5.0))
    assert meter.percentiles("stripe") == {"p50": 0.050, "p95": 0.095, "p99": 0.099}
    assert meter.percentiles("github") == {"p50": 5.0, "p95": 5.0, "p99": 5.0}
    assert meter.percentiles("nobody") is None
    for _ in range(2 * LATENCIES):
        meter.acked.append(("github", 1.0))
    assert len(meter.acked) == LATENCIES and meter.percentiles("stripe") is None


def test_refusals_are_counted_by_the_minute_for_a_day() -> None:
    clock = Moved()
    meter = Meter(clock)
    for _ in range(3 * MINUTES):
        meter.refused("stripe", "bad_signature", "no")
        clock.at += 60
    counted = meter.refusals(0)
    assert len(counted) <= MINUTES and sum(number for *_, number in counted) <= MINUTES
    assert meter.last_refused["stripe"].reason == "bad_signature"
    assert len(meter.refusals(clock.at - 600)) <= 11


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_the_door_counts_what_it_refuses_and_no_name_is_a_strangers(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await deliver(inbox, "stripe", stripe_body("evt_2"), secret="whsec_wrong")
    for n in range(20):
        await post(inbox, f"strange-{n}", b"{}", {})
    assert set(inbox.meter.last_refused) == {"stripe", "unknown"}
    refused = {(source, reason): number for _, source, reason, number in inbox.meter.refusals(0)}
    assert refused == {("stripe", "bad_signature"): 1, ("unknown", "unknown_source"): 20}
    assert [name for name, _ in inbox.meter.acked] == ["stripe"]
