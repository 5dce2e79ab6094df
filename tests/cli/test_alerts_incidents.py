"""`oncehook alerts` with open incidents, firing rules and targets."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.alerts import configured, evaluate_after
from tests.support.command_line import Run
from tests.support.events import stripe_body
from tests.support.serve import write_config
from tests.support.servers import run_sql

sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def deliver_dead_letter(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", b'{"type": "invoice.paid"}')  # without an id, so it becomes a dead letter


def test_alerts_command_lists_incidents_and_the_value_of_every_rule(
    run: Run, in_folder: Path, database: str, make_inbox: Callable[..., Inbox]
) -> None:
    write_config(in_folder, database)

    async def fill() -> None:
        inbox = make_inbox(config=configured(targets={"page": {"command": ["false"]}}))
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            assert (await evaluate_after(inbox)).opened == []
            await deliver_dead_letter(inbox)
            await evaluate_after(inbox)
            await inbox._runtime.alerts.send_due()

    asyncio.run(fill())
    ran = run("alerts")
    assert ran.code == 0
    first, notification, remedy, _, *table = ran.out.splitlines()
    assert re.fullmatch(r"Dead letters of stripe: 1 now, 1 at worst \(threshold 0\), since \S+Z", first)
    assert notification == "  page: opened, waiting: SendFailed: false exited with 1"
    assert remedy.startswith("→ ") and "oncehook replay --failed --source stripe" in remedy
    assert table[0].split() == ["rule", "now", "threshold", "source", "state"]
    assert [line.split()[0] for line in table[1:]] == [
        "dead_letters", "lag", "unhandled", "paused", "paused_consumer", "rejections", "silent", "effects", "refusing",
        "failing",
    ]  # fmt: skip
    assert table[1].split() == ["dead_letters", "1", "0", "stripe", "firing"]
    assert table[2].split()[-2:] == ["5m", "stripe"] and table[7].split()[-2:] == ["–", "off"]
    incident, *rules = map(json.loads, run("alerts", "--json").out.splitlines())
    assert (incident["rule"], incident["source"], incident["value"]) == ("dead_letters", "stripe", 1.0)
    assert [(alert["target"], alert["status"]) for alert in incident["alerts"]] == [("page", "waiting")]
    assert [row["rule"] for row in rules if row["is_firing"]] == ["dead_letters"]


@sqlite
def test_alerts_command_shows_a_firing_rule_before_its_incident_opens(
    run: Run, in_folder: Path, database: str, make_inbox: Callable[..., Inbox]
) -> None:
    write_config(in_folder, database)

    async def fill() -> None:
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            await deliver_dead_letter(inbox)

    asyncio.run(fill())
    first, remedy, *_ = run("alerts").out.splitlines()
    assert first == (
        "stripe has dead letters: 1 (threshold 0). "
        "A running `oncehook serve` or `oncehook worker` opens an incident within 15s."
    )
    assert remedy.startswith("→ Run `oncehook dead` to see the errors")


@sqlite
def test_incident_shows_current_and_worst_value_and_when_it_closes(
    run: Run, in_folder: Path, database: str, make_inbox: Callable[..., Inbox]
) -> None:
    write_config(in_folder, database)

    async def fill() -> None:
        inbox = make_inbox(config=configured())
        for name in ("stripe", "shop"):
            inbox.source(name, provider="stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            for number in range(3):
                await deliver(inbox, "stripe", b'{"type": "invoice.paid", "n": %d}' % number)
            await deliver(inbox, "shop", b'{"type": "invoice.paid"}')
            await evaluate_after(inbox)
            await deliver(inbox, "stripe", b'{"type": "invoice.paid", "n": 3}')
            await evaluate_after(inbox)
            run_sql(database, "UPDATE webhook_receipts SET status = 'processed' WHERE source = 'stripe'")
            await evaluate_after(inbox)

    asyncio.run(fill())
    shop, stripe = sorted(line for line in run("alerts").out.splitlines() if "at worst" in line)
    assert shop.startswith("Dead letters of shop: 1 now, 1 at worst (threshold 0), since ") and "closes" not in shop
    assert stripe.startswith("Dead letters of stripe: 0 now, 4 at worst (threshold 0), since ")
    assert re.search(r"; closes at \d\d:\d\d:\d\dZ if it stays below the threshold$", stripe)
    (remedy,) = [line for line in run("alerts").out.splitlines() if line.startswith("→")]
    assert "oncehook replay --failed --source SOURCE" in remedy
    of_stripe, *_ = [row for row in run("alerts", "--json").lines if row.get("worst") == 4]
    assert (of_stripe["value"], of_stripe["now"], of_stripe["at_worst"]) == (0, "0", "4")
    assert of_stripe["closes_at"] > of_stripe["below_at"] > of_stripe["opened_at"]


@sqlite
def test_alerts_command_without_an_incident(
    run: Run, in_folder: Path, database: str, make_inbox: Callable[..., Inbox]
) -> None:
    write_config(in_folder, database)

    async def start() -> None:
        async with make_inbox().lifespan():
            pass

    asyncio.run(start())
    ran = run("alerts")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "there are no open incidents")


@sqlite
def test_alerts_test_command_shows_each_response_and_exits_1_if_one_failed(
    run: Run, in_folder: Path, database: str
) -> None:
    got = in_folder / "got"
    well = f'[alerts.targets.file]\ncommand = ["tee", "{got}"]'
    bad = '[alerts.targets.pager]\ncommand = ["sh", "-c", "echo no such team >&2; exit 4", "a-token"]'
    write_config(in_folder, database, well)
    ran = run("alerts", "test")
    assert (ran.code, ran.out) == (0, "file  command tee  sent: exited with 0\n")
    body = json.loads(got.read_text())
    assert body["type"] == "alert.test" and body["data"]["id"].endswith("-test")
    write_config(in_folder, database, well, bad)
    ran = run("alerts", "test")
    assert ran.code == 1 and "pager  command sh  failed: sh exited with 4\n" in ran.out and "sent: exited" in ran.out
    assert "no such team" in ran.error and "a-token" not in ran.out + ran.error
    ran = run("alerts", "test", "file")
    assert (ran.code, ran.out.count("\n")) == (0, 1)
    ran = run("alerts", "test", "opps")
    assert (
        ran.code == 2
        and "there is no [alerts.targets.opps] in the configuration; the targets are: file, pager" in ran.error
    )
    write_config(in_folder, database)
    ran = run("alerts", "test")
    assert ran.code == 1 and "add one as [alerts.targets.NAME]" in ran.error
