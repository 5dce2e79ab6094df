"""The table of metrics and the counters of the processes."""

import json
import os
import re
import signal
from pathlib import Path

import httpx
import msgspec
import pytest

from oncehook.observability import metrics
from oncehook.observability.metrics import FOLDER, METRICS, VALUES, Tally, combined_tally
from oncehook.receiver.ack import ERRORS
from tests.support.events import stripe_body, stripe_headers
from tests.support.prometheus import parse_metrics
from tests.support.serve import process, write_config
from tests.support.servers import Postgres
from tests.support.waiting import wait_until


def test_metric_names_and_labels_are_the_documented_ones() -> None:
    promised = """
    oncehook_received_total{source} oncehook_duplicates_total{source} oncehook_rejected_total{source,reason}
    oncehook_accept_seconds{source} oncehook_lag_seconds{source,consumer} oncehook_receipts{source,consumer,state}
    oncehook_processed_total{source,consumer,outcome} oncehook_handle_seconds{source,consumer,handler}
    oncehook_stale_total{source,consumer} oncehook_effect_conflicts_total{source,consumer} oncehook_effects{state}
    oncehook_oldest_unfinished_seconds{source,consumer} oncehook_unhandled{source,consumer}
    oncehook_paused{source} oncehook_consumer_paused{consumer} oncehook_fast_path_hits_total{source}
    oncehook_replica_lag_seconds{} oncehook_replica_used{}
        oncehook_queue_sent_total{} oncehook_queue_ignored_total{} oncehook_queue_messages{state}
        oncehook_spool_events{} oncehook_intake_lag_seconds{source}
    """
    names = {match[1]: tuple(re.findall(r"\w+", match[2])) for match in re.finditer(r"(\w+)\{([\w,]*)\}", promised)}
    assert {name: labels for name, (_, labels, _) in METRICS.items()} == names


def test_rejection_reasons_are_the_error_codes_of_the_receiver() -> None:
    assert set(VALUES["reason"]) == set(ERRORS) - {"unknown_source", "handler_failed"}


def test_counts_of_several_processes_are_added_up_including_a_killed_one(postgres: Postgres, tmp_path: Path) -> None:
    """A killed process loses counts that it has not written yet, so both have written before."""
    config = write_config(tmp_path, postgres.database(migrated=True))
    with process(config, "--processes", "2", "--no-worker", TMPDIR=str(tmp_path)) as serving:
        address = f"http://127.0.0.1:{serving.port}"

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                body = stripe_body(f"evt_{number}")
                # a new connection for each: either process may accept it
                answer = httpx.post(
                    f"{address}/webhooks/stripe", content=body, headers=stripe_headers(body), verify=False
                )
                assert answer.status_code == 202

        def received() -> float:
            return parse_metrics(httpx.get(f"{address}/metrics", verify=False).content).get(
                'oncehook_received_total{source="stripe"}', 0.0
            )

        wait_until(lambda: httpx.get(f"{address}/readyz", verify=False).status_code == 200, ignore=(httpx.HTTPError,))
        send(0, 40)
        wait_until(lambda: received() == 40, ignore=(httpx.HTTPError,))
        wait_until(lambda: received_in_files(tmp_path) == 40)
        parent = serving.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        wait_until(lambda: Path(f"/proc/{parent}/task/{parent}/children").read_text().split() != children)
        wait_until(lambda: httpx.get(f"{address}/readyz", verify=False).status_code == 200, ignore=(httpx.HTTPError,))
        send(40, 60)
        wait_until(lambda: received() == 60, ignore=(httpx.HTTPError,))


def received_in_files(folder: Path) -> float:
    """Return the number of received events in the files of the processes."""
    (files,) = folder.glob("oncehook-metrics-*")
    counted = [json.loads(file.read_bytes())["counters"] for file in files.glob("*.json")]
    total: float = sum(value for counters in counted for key, value in counters if key[0] == "oncehook_received_total")
    return total


def test_tally_counts_and_observes_per_label() -> None:
    tally = Tally()
    tally.count("oncehook_received_total", "stripe")
    tally.count("oncehook_received_total", "stripe", by=2)
    tally.observe("oncehook_accept_seconds", "stripe", value=0.003)
    tally.observe_key(("oncehook_accept_seconds", "stripe"), 100.0)
    assert tally.counters["oncehook_received_total", "stripe"] == 3
    histogram = tally.histograms["oncehook_accept_seconds", "stripe"]
    assert (sum(histogram.counts), histogram.counts[-1], histogram.sum) == (2, 1, 100.003)


def test_snapshots_of_processes_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    sibling = Tally()
    sibling.count("oncehook_received_total", "sibling", by=4)
    sibling.observe("oncehook_accept_seconds", "sibling", value=1.0)
    (tmp_path / "1.json").write_bytes(msgspec.json.encode(sibling.snapshot()))
    (tmp_path / "2.json").write_bytes(b"{half a file")
    combined = combined_tally()
    assert combined.counters["oncehook_received_total", "sibling"] == 4, "a file that cannot be read is left out"
    assert combined.histograms["oncehook_accept_seconds", "sibling"].sum == 1.0


def test_own_file_is_not_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    before = combined_tally().counters["oncehook_received_total", "own"]
    metrics.count("oncehook_received_total", "own")
    metrics.write_snapshot(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [f"{os.getpid()}.json"]
    assert combined_tally().counters["oncehook_received_total", "own"] == before + 1


def test_full_disk_costs_no_error(tmp_path: Path) -> None:
    metrics.write_snapshot(tmp_path / "no such folder")


@pytest.mark.anyio
async def test_without_siblings_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    await metrics.write_periodically()  # returns instead of writing until it is cancelled
