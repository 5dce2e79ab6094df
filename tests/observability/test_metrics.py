"""What is counted and scraped: the promised names, right figures, no label of a sender's choosing."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncehook import Event, Inbox
from oncehook.concurrency.clock import Clock
from oncehook.config.settings import Settings
from oncehook.observability import metrics
from oncehook.observability.metrics import BOUNDS, METRICS, VALUES, Tally
from oncehook.operations.metrics_exporter import MetricsExporter, render
from oncehook.receiver.ack import ERRORS
from oncehook.store import make_store
from oncehook.testing import deliver, drain, post
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import process, served, write_config
from tests.support.servers import Postgres
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Figures = dict[str, float]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counts of this test's own."""
    monkeypatch.setattr(metrics.TALLY, "counters", Tally().counters)
    monkeypatch.setattr(metrics.TALLY, "histograms", Tally().histograms)
    yield


def read(text: bytes) -> Figures:
    lines = [line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def scraped(inbox: Inbox) -> Figures:
    return read(await MetricsExporter(inbox._runtime.store).text())


async def test_the_door_counts_what_it_took_and_what_it_refused(inbox: Inbox) -> None:
    for _ in range(3):
        await deliver(inbox, "stripe", stripe_body("evt_1"))
    await deliver(inbox, "stripe", stripe_body("evt_2"))
    await deliver(inbox, "stripe", stripe_body("evt_3"), secret="whsec_other")
    await deliver(inbox, "stripe", stripe_body("evt_3"), now=1.0)
    await post(inbox, "no-such-<source>", b"{}", {})
    figures = await scraped(inbox)
    assert figures['oncehook_received_total{source="stripe"}'] == 2
    assert figures['oncehook_duplicates_total{source="stripe"}'] == 2
    assert figures['oncehook_rejected_total{reason="bad_signature",source="stripe"}'] == 1
    assert figures['oncehook_rejected_total{reason="stale_timestamp",source="stripe"}'] == 1
    assert figures['oncehook_rejected_total{reason="unknown_source",source="unknown"}'] == 1
    assert figures['oncehook_accept_seconds_count{source="stripe"}'] == 4
    assert figures['oncehook_accept_seconds_bucket{le="+Inf",source="stripe"}'] == 4
    assert 0 < figures['oncehook_accept_seconds_sum{source="stripe"}'] < 60
    assert not [name for name in figures if "no-such" in name]


async def test_the_work_counts_outcomes_and_times_by_handler(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await asyncio.sleep(0.01)

    async with inbox.lifespan():
        for number in range(5):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
        async with asyncio.timeout(20):
            while sum(v for k, v in metrics.TALLY.counters.items() if k[0] == "oncehook_processed_total") < 5:
                await asyncio.sleep(0.02)
        figures = await scraped(inbox)
    assert figures['oncehook_processed_total{outcome="processed",source="stripe"}'] == 5
    (counted,) = [v for k, v in figures.items() if k.startswith("oncehook_handle_seconds_count") and "paid" in k]
    (total,) = [v for k, v in figures.items() if k.startswith("oncehook_handle_seconds_sum") and "paid" in k]
    assert counted == 5 and total >= 0.05
    assert figures['oncehook_receipts{source="stripe",state="processed"}'] == 5
    assert figures['oncehook_lag_seconds{source="stripe"}'] == 0


async def test_effects_are_by_state_and_conflicts_and_old_news_are_counted(make_inbox: Callable[..., Inbox]) -> None:
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
        waiting = await scraped(inbox)
        await drain(inbox)
        figures = await scraped(inbox)
    assert (waiting['oncehook_effects{state="waiting"}'], figures['oncehook_effects{state="done"}']) == (1, 1)
    assert figures['oncehook_effect_conflicts_total{source="stripe"}'] == 2
    assert figures['oncehook_stale_total{source="stripe"}'] == 2


async def test_what_waits_has_a_lag(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", stripe_body())
    await asyncio.sleep(0.05)
    figures = await scraped(inbox)
    assert figures['oncehook_receipts{source="stripe",state="received"}'] == 1
    assert figures['oncehook_lag_seconds{source="stripe"}'] > 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_database_that_is_away_leaves_only_its_own_figures_out(inbox: Inbox, tmp_path: Path) -> None:
    await deliver(inbox, "stripe", stripe_body())
    away = make_store(Settings(database=f"sqlite:///{tmp_path}/nowhere.db"))
    figures = read(await MetricsExporter(away).text())
    assert figures['oncehook_received_total{source="stripe"}'] == 1
    assert not [name for name in figures if name.startswith("oncehook_receipts")]


class Moved(Clock):
    """A clock that a test moves."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


async def test_the_text_is_rendered_once_a_second(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, count = Moved(), 0

    def counted(*given: Any) -> bytes:
        nonlocal count
        count += 1
        return render(*given)

    monkeypatch.setattr("oncehook.operations.metrics_exporter.render", counted)
    exporter = MetricsExporter(inbox._runtime.store, clock=clock)
    texts = await asyncio.gather(*(exporter.text() for _ in range(20)))
    assert count == 1 and len(set(texts)) == 1
    clock.seconds += 1.0
    await deliver(inbox, "stripe", stripe_body())
    assert read(await exporter.text())['oncehook_received_total{source="stripe"}'] == 1 and count == 2


async def test_the_database_is_not_asked_at_every_scrape(inbox: Inbox) -> None:
    clock = Moved()
    exporter = MetricsExporter(inbox._runtime.store, clock=clock)
    await exporter.text()
    await deliver(inbox, "stripe", stripe_body())
    clock.seconds += 2.0
    figures = read(await exporter.text())
    assert figures['oncehook_received_total{source="stripe"}'] == 1
    assert 'oncehook_receipts{source="stripe",state="received"}' not in figures


def test_a_histogram_has_every_bound_and_grows_with_it() -> None:
    tally = Tally()
    for value in (0.0001, 0.001, 0.3, 100.0):
        tally.observe("oncehook_accept_seconds", "stripe", value=value)
    figures = read(render(tally, {}))
    buckets = [v for k, v in figures.items() if k.startswith("oncehook_accept_seconds_bucket")]
    assert len(buckets) == len(BOUNDS) + 1 and buckets == sorted(buckets) and buckets[0] == 2 and buckets[-1] == 4
    assert figures['oncehook_accept_seconds_sum{source="stripe"}'] == pytest.approx(100.3011)


def test_the_names_and_labels_are_the_promised_ones() -> None:
    promised = """
    oncehook_received_total{source} oncehook_duplicates_total{source} oncehook_rejected_total{source,reason}
    oncehook_accept_seconds{source} oncehook_lag_seconds{source} oncehook_receipts{source,state}
    oncehook_processed_total{source,outcome} oncehook_handle_seconds{source,handler} oncehook_stale_total{source}
    oncehook_effect_conflicts_total{source} oncehook_effects{state} oncehook_oldest_unfinished_seconds{source}
    oncehook_paused{source} oncehook_unhandled{source}
    """
    names = {match[1]: tuple(match[2].split(",")) for match in re.finditer(r"(\w+)\{([\w,]+)\}", promised)}
    assert {name: labels for name, (_, labels, _) in METRICS.items()} == names


def test_the_reasons_are_the_errors_that_a_configured_source_answers() -> None:
    assert set(VALUES["reason"]) == set(ERRORS) - {"unknown_source", "handler_failed"}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_every_series_of_a_configured_source_is_there_from_the_start(inbox: Inbox) -> None:
    figures = read(await MetricsExporter(inbox._runtime.store, inbox._runtime.sources).text())
    for source in ("stripe", "github"):
        assert figures[f'oncehook_received_total{{source="{source}"}}'] == 0
        assert figures[f'oncehook_processed_total{{outcome="failed",source="{source}"}}'] == 0
        assert figures[f'oncehook_rejected_total{{reason="bad_signature",source="{source}"}}'] == 0
        assert figures[f'oncehook_accept_seconds_count{{source="{source}"}}'] == 0
        assert figures[f'oncehook_receipts{{source="{source}",state="failed"}}'] == 0
        assert figures[f'oncehook_oldest_unfinished_seconds{{source="{source}"}}'] == 0
        assert figures[f'oncehook_paused{{source="{source}"}}'] == 0
    assert figures['oncehook_effects{state="failed"}'] == 0


# -- the service ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_metrics_are_open_unless_there_is_a_token(make_inbox: Callable[..., Inbox]) -> None:
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


def test_several_processes_are_counted_together_and_a_dead_one_still_counts(postgres: Postgres, tmp_path: Path) -> None:
    """A process that is killed takes along what it has not written yet: before that, both have written."""
    config = write_config(tmp_path, postgres.database(migrated=True))
    with process(config, "--processes", "2", "--no-worker", TMPDIR=str(tmp_path)) as serving:
        address = f"http://127.0.0.1:{serving.port}"

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                body = stripe_body(f"evt_{number}")
                # a connection of its own each: either process may take it
                answer = httpx.post(
                    f"{address}/webhooks/stripe", content=body, headers=stripe_headers(body), verify=False
                )
                assert answer.status_code == 202

        def received() -> float:
            return read(httpx.get(f"{address}/metrics", verify=False).content).get(
                'oncehook_received_total{source="stripe"}', 0.0
            )

        wait_until(lambda: httpx.get(f"{address}/readyz", verify=False).status_code == 200, ignore=(httpx.HTTPError,))
        send(0, 40)
        wait_until(lambda: received() == 40, ignore=(httpx.HTTPError,))
        wait_until(lambda: written(tmp_path) == 40)
        parent = serving.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        wait_until(lambda: Path(f"/proc/{parent}/task/{parent}/children").read_text().split() != children)
        wait_until(lambda: httpx.get(f"{address}/readyz", verify=False).status_code == 200, ignore=(httpx.HTTPError,))
        send(40, 60)
        wait_until(lambda: received() == 60, ignore=(httpx.HTTPError,))


def written(folder: Path) -> float:
    """How many events the processes have left behind as received."""
    (files,) = folder.glob("oncehook-metrics-*")
    counted = [json.loads(file.read_bytes())["counters"] for file in files.glob("*.json")]
    return sum(value for counters in counted for key, value in counters if key[0] == "oncehook_received_total")
