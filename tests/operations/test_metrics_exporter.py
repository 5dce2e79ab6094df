"""The metrics page: right values, no label chosen by a sender, and few queries of the database."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from oncehook import Event, Inbox
from oncehook.config.settings import Settings
from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from oncehook.observability import metrics
from oncehook.observability.metrics import BOUNDS, Tally
from oncehook.operations.metrics_exporter import MetricsExporter, render
from oncehook.store import make_store
from oncehook.store.replica import Position, ReplicaMonitor
from oncehook.testing import advance, deliver, drain, post
from tests.support.clocks import ManualClock
from tests.support.events import stripe_body
from tests.support.prometheus import Figures, parse_metrics
from tests.support.serve import served
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts with empty counts."""
    monkeypatch.setattr(metrics.TALLY, "counters", Tally().counters)
    monkeypatch.setattr(metrics.TALLY, "histograms", Tally().histograms)
    yield


async def scrape(inbox: Inbox) -> Figures:
    return parse_metrics(await MetricsExporter(inbox._runtime.store).text())


async def test_receiver_counts_accepted_duplicate_and_rejected_deliveries(inbox: Inbox) -> None:
    for _ in range(3):
        await deliver(inbox, "stripe", stripe_body("evt_1"))
    await deliver(inbox, "stripe", stripe_body("evt_2"))
    await deliver(inbox, "stripe", stripe_body("evt_3"), secret="whsec_other")
    await deliver(inbox, "stripe", stripe_body("evt_3"), now=1.0)
    await post(inbox, "no-such-<source>", b"{}", {})
    figures = await scrape(inbox)
    assert figures['oncehook_received_total{source="stripe"}'] == 2
    assert figures['oncehook_duplicates_total{source="stripe"}'] == 2
    assert figures['oncehook_rejected_total{reason="bad_signature",source="stripe"}'] == 1
    assert figures['oncehook_rejected_total{reason="stale_timestamp",source="stripe"}'] == 1
    assert figures['oncehook_rejected_total{reason="unknown_source",source="unknown"}'] == 1
    assert figures['oncehook_accept_seconds_count{source="stripe"}'] == 4
    assert figures['oncehook_accept_seconds_bucket{le="+Inf",source="stripe"}'] == 4
    assert 0 < figures['oncehook_accept_seconds_sum{source="stripe"}'] < 60
    assert not [name for name in figures if "no-such" in name]


def processed_attempts() -> float:
    return sum(count for key, count in metrics.TALLY.counters.items() if key[0] == "oncehook_processed_total")


async def test_worker_counts_outcomes_and_seconds_per_handler(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None: ...

    async with inbox.lifespan():
        for number in range(5):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
        await eventually(lambda: processed_attempts() == 5, "the worker processes all events")
        figures = await scrape(inbox)
    assert figures['oncehook_processed_total{consumer="main",outcome="processed",source="stripe"}'] == 5
    (counted,) = [v for k, v in figures.items() if k.startswith("oncehook_handle_seconds_count") and "paid" in k]
    (total,) = [v for k, v in figures.items() if k.startswith("oncehook_handle_seconds_sum") and "paid" in k]
    assert counted == 5 and total > 0
    assert figures['oncehook_receipts{consumer="main",source="stripe",state="processed"}'] == 5
    assert figures['oncehook_lag_seconds{consumer="main",source="stripe"}'] == 0


async def test_effects_are_shown_by_state_and_conflicts_and_stale_events_are_counted(
    make_inbox: Callable[..., Inbox],
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.effect(name="send")(lambda effect: None)

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        await event.effect("mail:in_1", "send")
        await event.advance("invoice", "in_1", at=datetime(2026, 11, 15, tzinfo=UTC), version=-int(event.id[-1]))

    async with inbox.lifespan():
        for number in range(3):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
        await drain(inbox, effects=False)
        waiting = await scrape(inbox)
        await drain(inbox)
        figures = await scrape(inbox)
    assert (waiting['oncehook_effects{state="waiting"}'], figures['oncehook_effects{state="done"}']) == (1, 1)
    assert figures['oncehook_effect_conflicts_total{consumer="main",source="stripe"}'] == 2
    assert figures['oncehook_stale_total{consumer="main",source="stripe"}'] == 2


async def test_work_is_shown_by_consumer_and_deliveries_are_not(inbox: Inbox) -> None:
    failed = ConsumerClaim("ledger", State.FAILED, "E: no account")
    await claim(inbox, "evt_1", status=State.PROCESSED, copies=(ConsumerClaim("analytics"), failed))
    await inbox._runtime.store.pauses.pause("", "jane", consumer="ledger")
    await advance(inbox, "2s")
    figures = await scrape(inbox)
    assert figures['oncehook_lag_seconds{consumer="analytics",source="stripe"}'] >= 2
    assert figures['oncehook_oldest_unfinished_seconds{consumer="analytics",source="stripe"}'] >= 2
    assert figures['oncehook_lag_seconds{consumer="main",source="stripe"}'] == 0
    assert figures['oncehook_receipts{consumer="ledger",source="stripe",state="failed"}'] == 1
    assert figures['oncehook_receipts{consumer="main",source="stripe",state="processed"}'] == 1
    assert figures['oncehook_processed_total{consumer="ledger",outcome="failed",source="stripe"}'] == 0
    paused = {name: figures[f'oncehook_consumer_paused{{consumer="{name}"}}'] for name in ("main", "ledger")}
    assert paused == {"main": 0, "ledger": 1} and figures['oncehook_paused{source="stripe"}'] == 0
    labels = [name for name in figures if name.startswith(("oncehook_received", "oncehook_duplicates"))]
    assert not [name for name in labels if "consumer" in name]


async def test_waiting_event_has_a_lag(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", stripe_body())
    await advance(inbox, "2s")
    figures = await scrape(inbox)
    assert figures['oncehook_receipts{consumer="main",source="stripe",state="received"}'] == 1
    assert figures['oncehook_lag_seconds{consumer="main",source="stripe"}'] >= 2


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_unavailable_database_leaves_out_only_its_gauges(inbox: Inbox, tmp_path: Path) -> None:
    await deliver(inbox, "stripe", stripe_body())
    away = make_store(Settings(database=f"sqlite:///{tmp_path}/nowhere.db"))
    figures = parse_metrics(await MetricsExporter(away).text())
    assert figures['oncehook_received_total{source="stripe"}'] == 1
    assert not [name for name in figures if name.startswith("oncehook_receipts")]


async def test_text_is_rendered_at_most_once_a_second(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, count = ManualClock(), 0

    def counting_render(*args: Any) -> bytes:
        nonlocal count
        count += 1
        return render(*args)

    # Equal texts do not show how often they were rendered, so the real call is counted.
    monkeypatch.setattr("oncehook.operations.metrics_exporter.render", counting_render)
    exporter = MetricsExporter(inbox._runtime.store, clock=clock)
    texts = await asyncio.gather(*(exporter.text() for _ in range(20)))
    assert count == 1 and len(set(texts)) == 1
    clock.advance(1.0)
    await deliver(inbox, "stripe", stripe_body())
    assert parse_metrics(await exporter.text())['oncehook_received_total{source="stripe"}'] == 1 and count == 2


async def test_database_is_not_queried_at_every_scrape(inbox: Inbox) -> None:
    clock = ManualClock()
    exporter = MetricsExporter(inbox._runtime.store, clock=clock)
    await exporter.text()
    await deliver(inbox, "stripe", stripe_body())
    clock.advance(2.0)
    figures = parse_metrics(await exporter.text())
    assert figures['oncehook_received_total{source="stripe"}'] == 1
    assert 'oncehook_receipts{consumer="main",source="stripe",state="received"}' not in figures


def test_histogram_has_a_cumulative_bucket_for_every_bound() -> None:
    tally = Tally()
    for value in (0.0001, 0.001, 0.3, 100.0):
        tally.observe("oncehook_accept_seconds", "stripe", value=value)
    figures = parse_metrics(render(tally, {}))
    buckets = [v for k, v in figures.items() if k.startswith("oncehook_accept_seconds_bucket")]
    assert len(buckets) == len(BOUNDS) + 1 and buckets == sorted(buckets) and buckets[0] == 2 and buckets[-1] == 4
    assert figures['oncehook_accept_seconds_sum{source="stripe"}'] == pytest.approx(100.3011)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_every_series_of_a_configured_source_exists_from_the_start(inbox: Inbox) -> None:
    figures = parse_metrics(await MetricsExporter(inbox._runtime.store, inbox._runtime.sources).text())
    for source in ("stripe", "github"):
        assert figures[f'oncehook_received_total{{source="{source}"}}'] == 0
        assert figures[f'oncehook_processed_total{{consumer="main",outcome="failed",source="{source}"}}'] == 0
        assert figures[f'oncehook_rejected_total{{reason="bad_signature",source="{source}"}}'] == 0
        assert figures[f'oncehook_accept_seconds_count{{source="{source}"}}'] == 0
        assert figures[f'oncehook_receipts{{consumer="main",source="{source}",state="failed"}}'] == 0
        assert figures[f'oncehook_oldest_unfinished_seconds{{consumer="main",source="{source}"}}'] == 0
        assert figures[f'oncehook_paused{{source="{source}"}}'] == 0
    assert figures['oncehook_effects{state="failed"}'] == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_metrics_page_needs_the_token_if_one_is_set(make_inbox: Callable[..., Inbox]) -> None:
    for settings, headers, status in (
        ({}, {}, 200),
        ({"metrics_token": "t0ken"}, {}, 401),
        ({"metrics_token": "t0ken"}, {"Authorization": "Bearer other"}, 401),
        ({"metrics_token": "t0ken"}, {"Authorization": "Bearer t0ken"}, 200),
    ):
        inbox = make_inbox(**settings)
        inbox.source("stripe", secrets=["whsec_test"])
        async with served(inbox) as port, httpx.AsyncClient(verify=False) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/metrics", headers=headers)
            assert answer.status_code == status
            assert ("oncehook_received_total" in answer.text) == (status == 200)
            assert (await client.post(f"http://127.0.0.1:{port}/metrics")).status_code == 405


async def test_gauges_of_the_read_replica_are_of_this_process(make_inbox: Callable[..., Inbox]) -> None:
    clock = ManualClock()
    monitor = ReplicaMonitor(10.0, clock)
    replica: Any = SimpleNamespace(monitor=monitor)
    exporter = MetricsExporter(make_inbox()._runtime.store, clock=clock, replica=lambda: replica)
    before = (await exporter.text()).decode()
    assert "oncehook_replica_used 0.0" in before and "\noncehook_replica_lag_seconds " not in before
    monitor.record(clock.monotonic(), Position("1/5", 100, False), Position("1/5", 100, True))
    clock.advance(2)
    after = (await exporter.text()).decode()
    assert "oncehook_replica_used 1.0" in after and "oncehook_replica_lag_seconds 0.0" in after
