"""The commands of docs/operate.md run on a real inbox, and its numbers match the source."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.alerts.rules import RULES
from oncehook.config.settings import Settings
from oncehook.effects.effect import Effect
from oncehook.testing import deliver, drain
from tests.support.command_line import Run
from tests.support.documentation import PAGES
from tests.support.events import stripe_body
from tests.support.serve import write_config

pytestmark = pytest.mark.anyio

PAGE = PAGES["docs/operate.md"]
TESTED_ELSEWHERE = ("serve", "worker", "send")
"""Commands that run until they are stopped, or that call a server."""


def documented_commands() -> list[list[str]]:
    """Return every `oncehook` command of the page once, without the program's name."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    inline = [shlex.split(line) for line in re.findall(r"`(oncehook [^`]+)`", PAGE) if "NAME" not in line]
    unique = {tuple(line[1:]): line[1:] for line in (*lines, *inline) if line[:1] == ["oncehook"]}
    return [words for words in unique.values() if words[0] not in TESTED_ELSEWHERE]


async def make_history(database: str) -> None:
    """Create events that were handled, that failed and that wait, a rejected one, and failed effects."""
    inbox = Inbox(database, worker=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect(retry=Retry(attempts=1))
    async def send_receipt(effect: Effect) -> None:
        raise ValueError("the mail server is down")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def paid(event: Event) -> None:
        if event.id == "evt_bad":
            raise ValueError("unknown customer")
        await event.effect(f"receipt:{event.id}", send_receipt)

    @inbox.on("stripe", "plan.created", consumer="analytics")
    async def track(event: Event) -> None: ...

    async with inbox.lifespan():
        for name in ("evt_1", "evt_2", "evt_bad"):
            await deliver(inbox, "stripe", stripe_body(name))
        await deliver(inbox, "stripe", stripe_body("evt_3"), secret="whsec_other")
        await drain(inbox)
        await deliver(inbox, "stripe", stripe_body("evt_4"))


@pytest.mark.sampled(1)
async def test_every_command_of_the_runbook_runs(run: Run, database: str, in_folder: Path) -> None:
    write_config(in_folder, database)
    await make_history(database)
    commands = documented_commands()
    names = {words[0] for words in commands}
    assert names >= {"stats", "doctor", "dead", "show", "replay", "effects", "migrate", "prune"}
    results = {}
    for words in commands:
        result = await asyncio.to_thread(run, *words)  # a command starts its own event loop
        assert result.code in (0, 1), (words, result.error)
        results[" ".join(words)] = result
    assert "unknown customer" in results["dead"].out
    assert "secret" in results["doctor signature stripe"].out
    assert results["effects --status failed"].code == 0
    assert results["migrate --sql"].out == "", "an up-to-date schema needs no SQL"


def test_every_alert_rule_leads_to_a_section() -> None:
    table = PAGE.partition("## First look")[0]
    assert [rule.name for rule in RULES if f"`{rule.name}`" not in table] == []


@pytest.mark.parametrize(
    "phrase",
    [
        f"`lease` ({Settings().lease:.0f} s)",
        f"`poll` ({Settings().poll:.0f} s)",
        f"`claim_timeout` ({Settings().claim_timeout:.0f} s)",
        f"`intake_bytes` ({Settings().intake_bytes // 2**20} MiB)",
    ],
)
def test_number_in_the_runbook_matches_the_source(phrase: str) -> None:
    assert phrase in " ".join(PAGE.split())
