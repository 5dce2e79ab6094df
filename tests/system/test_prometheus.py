"""The shipped alert rules in Prometheus: on prepared series, and on a scraped service."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from oncehook import Event, Fail, Inbox
from oncehook.testing import deliver, drain, post
from oncehook.worker.rescue import ABANDONED
from tests.support import ROOT, programs
from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.serve import process
from tests.support.servers import free_port, run_sql
from tests.support.waiting import wait_until

RULES_FILE = ROOT / "deploy/prometheus/alerts.yaml"
RULES = [rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]]
SOURCE = 'source="stripe"'
WORK = 'source="stripe", consumer="analytics"'

# Alert → the series that trigger it ("0+3x60" starts at 0 and adds 3 per minute for an hour), and when it must fire.
FIRES: dict[str, tuple[dict[str, str], str]] = {
    "OncehookDown": ({'up{job="oncehook", instance="a"}': "1 1 0x60"}, "10m"),
    "OncehookDatabaseAway": ({f'oncehook_receipts{{{SOURCE}, state="failed"}}': "0x60 _x60"}, "70m"),
    "OncehookLag": (
        {
            f"oncehook_oldest_unfinished_seconds{{{WORK}}}": "0+60x60",
            f"oncehook_paused{{{SOURCE}}}": "0x60",
            'oncehook_consumer_paused{consumer="main"}': "1x60",
        },
        "8m",
    ),
    "OncehookUnhandled": ({f"oncehook_unhandled{{{WORK}}}": "3x60"}, "12m"),
    "OncehookPaused": ({f"oncehook_paused{{{SOURCE}}}": "1x1500"}, "1441m"),
    "OncehookConsumerPaused": ({'oncehook_consumer_paused{consumer="analytics"}': "1x1500"}, "1441m"),
    "OncehookSignatures": (
        {
            f'oncehook_rejected_total{{{SOURCE}, reason="bad_signature"}}': "0+60x60",
            f"oncehook_accept_seconds_count{{{SOURCE}}}": "0x60",
        },
        "25m",
    ),
    "OncehookNothingAccepted": (
        {
            f'oncehook_rejected_total{{{SOURCE}, reason="bad_signature"}}': "0+1x60",
            f"oncehook_accept_seconds_count{{{SOURCE}}}": "0x60",
        },
        "35m",
    ),
    "OncehookSpool": ({"oncehook_spool_events": "0 5x60"}, "8m"),
    "OncehookDeadLetters": ({f'oncehook_receipts{{{WORK}, state="failed"}}': "0 1x60"}, "1m"),
    "OncehookHandlersFail": (
        {
            f'oncehook_processed_total{{{SOURCE}, consumer="main", outcome="processed"}}': "0+90x60",
            f'oncehook_processed_total{{{WORK}, outcome="crashed"}}': "0+9x60",
            f'oncehook_processed_total{{{WORK}, outcome="processed"}}': "0+1x60",
        },
        "25m",
    ),
    "OncehookEffectsFailed": ({'oncehook_effects{state="failed"}': "0 2x60"}, "7m"),
    "OncehookSilent": ({f"oncehook_received_total{{{SOURCE}}}": "0+1x1440 1440x600"}, "1900m"),
    "OncehookSlow": (
        {
            f'oncehook_accept_seconds_bucket{{{SOURCE}, le="5.0"}}': "0x60",
            f'oncehook_accept_seconds_bucket{{{SOURCE}, le="10.0"}}': "0+60x60",
            f'oncehook_accept_seconds_bucket{{{SOURCE}, le="+Inf"}}': "0+60x60",
        },
        "20m",
    ),
}
# Series that must not trigger an alert.
QUIET: dict[str, tuple[str, dict[str, str], str]] = {
    "a paused source has no lag": (
        "OncehookLag",
        {f"oncehook_oldest_unfinished_seconds{{{WORK}}}": "0+60x60", f"oncehook_paused{{{SOURCE}}}": "1x60"},
        "60m",
    ),
    "a paused consumer has no lag": (
        "OncehookLag",
        {
            f"oncehook_oldest_unfinished_seconds{{{WORK}}}": "0+60x60",
            'oncehook_consumer_paused{consumer="analytics"}': "1x60",
        },
        "60m",
    ),
    "dead letters that were replayed": (
        "OncehookDeadLetters", {f'oncehook_receipts{{{WORK}, state="failed"}}': "3x20 0x40"}, "40m",
    ),
}  # fmt: skip


def rule_named(name: str) -> dict[str, Any]:
    rule: dict[str, Any]
    (rule,) = [rule for rule in RULES if rule["alert"] == name]
    return rule


def assert_alert(folder: Path, alert: str, series: dict[str, str], at: str, *, fires: bool) -> None:
    """Assert with promtool that the alert fires, or does not fire, at this time of the series."""
    # The texts of an alert are not tested here: the copy of the rule has no labels and annotations.
    rule = {name: value for name, value in rule_named(alert).items() if name in ("alert", "expr", "for")}
    copy = folder / "rules.yaml"
    copy.write_text(yaml.safe_dump({"groups": [{"name": "oncehook", "rules": [rule]}]}))
    case = {
        "rule_files": [copy.name],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)',
                        "eval_time": at,
                        "exp_samples": [{"labels": "{}", "value": int(fires)}],
                    }
                ],
            }
        ],
    }
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump(case))
    done = subprocess.run(
        [programs.find("promtool"), "test", "rules", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    command = [str(programs.find("promtool")), "check", "rules", str(RULES_FILE)]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_every_rule_has_a_case() -> None:
    assert sorted(FIRES) == sorted(rule["alert"] for rule in RULES)


@pytest.mark.parametrize("alert", FIRES)
def test_prometheus_fires_the_alert(alert: str, tmp_path: Path) -> None:
    series, at = FIRES[alert]
    assert_alert(tmp_path, alert, series, at, fires=True)
    if alert != "OncehookDatabaseAway":  # it fires on missing series
        assert_alert(tmp_path, alert, series, "0m", fires=False)


@pytest.mark.parametrize("case", QUIET)
def test_prometheus_does_not_fire_the_alert(case: str, tmp_path: Path) -> None:
    alert, series, at = QUIET[case]
    assert_alert(tmp_path, alert, series, at, fires=False)


# -- a scraped service ----------------------------------------------------------------------------------------------


async def make_dead_letters(inbox: Inbox, database: str) -> None:
    """Create three dead letters: a failed handler, an event without an id, and an inline event that is abandoned."""

    @inbox.on("stripe", "*")
    async def fail(event: Event) -> None:
        raise Fail("the invoice is unknown")

    @inbox.on("inline", "*")
    async def not_now(event: Event) -> None:
        raise ValueError("not now")

    async with inbox.lifespan():
        inbox._runtime.start_processor()
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        await deliver(inbox, "stripe", json.dumps({"id": {"new": "shape"}, "type": "invoice.paid"}).encode())
        body = stripe_body("evt_3")
        assert (await post(inbox, "inline", body, stripe_headers(body))).status == 500
        run_sql(database, "UPDATE webhook_receipts SET next_attempt_at = received_at WHERE source = 'inline'")
        assert len(await inbox._runtime.store.leases.abandon_inline(ABANDONED)) == 1


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The address of a Prometheus with the shipped rules that scrapes `target` every second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES_FILE)],
        "scrape_configs": [{"job_name": "oncehook", "static_configs": [{"targets": [target]}]}],
    }
    file, port = folder / "prometheus.yaml", free_port()
    file.write_text(yaml.safe_dump(config))
    command = [
        str(programs.find("prometheus")), f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    running = subprocess.Popen(command, stderr=sys.stderr)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(20)


def firing(address: str, alert: str) -> dict[str, str]:
    """The value of each firing alert with this name, by source."""
    try:
        response = httpx.get(f"{address}/api/v1/alerts", timeout=5).raise_for_status()
    except httpx.HTTPError:  # Prometheus is still starting
        return {}
    return {
        row["labels"]["source"]: row["value"]
        for row in response.json()["data"]["alerts"]
        if row["labels"]["alertname"] == alert and row["state"] == "firing"
    }


@pytest.mark.rest
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_prometheus_fires_for_every_kind_of_dead_letter_of_a_running_service(
    tmp_path: Path, make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    inbox.source("inline", provider="stripe", secrets=[STRIPE_SECRET], mode="inline")
    asyncio.run(make_dead_letters(inbox, database))
    config = tmp_path / "oncehook.toml"
    config.write_text(f'database = "{database}"\n[sources.stripe]\nsecrets = ["{STRIPE_SECRET}"]\n')
    with process(config) as serve, prometheus(tmp_path, f"127.0.0.1:{serve.port}") as address:
        wait_until(
            lambda: firing(address, "OncehookDeadLetters") == {"stripe": "2e+00", "inline": "1e+00"},
            "the alert fires for both sources",
            within=60,
        )
