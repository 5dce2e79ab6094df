"""The runbook is true: its commands run on a real inbox, and backups come back as it says."""

import asyncio
import contextlib
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.alerts.rules import RULES
from oncehook.config.settings import Settings
from oncehook.effects.effect import Effect
from oncehook.testing import deliver, drain
from tests.docs.test_docs import TEXTS
from tests.support.command_line import Ran, Run
from tests.support.events import stripe_body
from tests.support.serve import write_config
from tests.support.servers import Postgres, ask

pytestmark = pytest.mark.anyio

PAGE = TEXTS["docs/operate.md"]
NOT_ALONE = ("serve", "worker", "send")
"""Commands that go on until they are stopped, or that call somebody; tests of their own run them."""


# -- its commands ---------------------------------------------------------------------------------------------------


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    inline = [shlex.split(line) for line in re.findall(r"`(oncehook [^`]+)`", PAGE) if "NAME" not in line]
    unique = {tuple(line[1:]): line[1:] for line in (*lines, *inline) if line[:1] == ["oncehook"]}
    return [words for words in unique.values() if words[0] not in NOT_ALONE]


async def make_history(database: str) -> None:
    """Events that were handled, that failed, and that wait; a refused one; effects that failed."""
    inbox = Inbox(database, worker=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect(retry=Retry(attempts=1))
    async def send_receipt(effect: Effect) -> None:
        raise ValueError("no mail today")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def paid(event: Event) -> None:
        if event.id == "evt_bad":
            raise ValueError("a bad one")
        await event.effect(f"receipt:{event.id}", send_receipt)

    async with inbox.lifespan():
        for name in ("evt_1", "evt_2", "evt_bad"):
            await deliver(inbox, "stripe", stripe_body(name))
        await deliver(inbox, "stripe", stripe_body("evt_3"), secret="whsec_other")
        await drain(inbox)
        await deliver(inbox, "stripe", stripe_body("evt_4"))


async def test_every_command_of_the_runbook_runs(run: Run, database: str, in_folder: Path) -> None:
    write_config(in_folder, database)
    await make_history(database)
    asked = commands()
    assert {words[0] for words in asked} >= {"stats", "doctor", "dead", "show", "replay", "effects", "migrate", "prune"}
    told = {}
    for words in asked:
        ran = await in_thread(run, *words)
        assert ran.code in (0, 1), (words, ran.error)
        told[" ".join(words)] = ran
    assert "a bad one" in told["dead"].out
    assert "other" in told["doctor signature stripe"].out or "secret" in told["doctor signature stripe"].out
    assert told["effects --status failed"].code == 0 and told["migrate --sql"].out == ""
    assert told["effects replay --failed"].code in (0, 1)


async def in_thread(run: Run, *words: str) -> Ran:
    """A command has a loop of its own, and this test has one already."""
    return await asyncio.to_thread(run, *words)


def test_every_rule_of_alerts_leads_somewhere() -> None:
    table = PAGE.partition("## First look")[0]
    assert [rule.name for rule in RULES if f"`{rule.name}`" not in table] == []


def test_a_number_of_the_runbook_is_the_one_in_the_source() -> None:
    settings, text = Settings(), " ".join(PAGE.split())
    for told in (
        f"`lease` ({settings.lease:.0f} s)",
        f"`poll` ({settings.poll:.0f} s)",
        f"`claim_timeout` ({settings.claim_timeout:.0f} s)",
        f"`intake_bytes` ({settings.intake_bytes // 2**20} MiB)",
    ):
        assert told in text, told


# -- backups --------------------------------------------------------------------------------------------------------


class Backup:
    """What the runbook does, by the tools that it names."""

    def __init__(self, database: str, postgres: Postgres, folder: Path) -> None:
        self.database = database
        self.postgres = postgres
        self.file = folder / "backup"

    @property
    def is_sqlite(self) -> bool:
        return self.database.startswith("sqlite:")

    @property
    def path(self) -> Path:
        return Path(self.database.removeprefix("sqlite:///"))

    def make(self) -> None:
        if self.is_sqlite:  # what `.backup` of the sqlite3 program does
            with (
                contextlib.closing(sqlite3.connect(self.path)) as live,
                contextlib.closing(sqlite3.connect(self.file)) as copy,
            ):
                live.backup(copy)
        else:
            self._tool("pg_dump", "--format=custom", f"--file={self.file}", self.database)

    def restore(self) -> str:
        """The address of the restored database."""
        if self.is_sqlite:
            for suffix in ("-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            shutil.copy(self.file, self.path)
            return self.database
        new = self.postgres.database()
        self._tool("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={new}", str(self.file))
        return new

    def _tool(self, name: str, *options: str) -> None:
        done = subprocess.run([self.postgres.binaries / name, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def backup(database: str, postgres: Postgres, tmp_path: Path) -> Iterator[Backup]:
    yield Backup(database, postgres, tmp_path)


def make_shop(database: str, performed: list[str], handled: list[str]) -> Inbox:
    inbox = Inbox(database, worker=False, lease="1s")
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect
    async def send_receipt(effect: Effect) -> None:
        performed.append(effect.idempotency_key)

    @inbox.on("stripe", "*", retry=Retry(first=0, most=0))
    async def paid(event: Event) -> None:
        handled.append(event.id)
        await event.effect(f"receipt:{event.id}", send_receipt)

    return inbox


async def test_a_restored_backup_goes_on_from_where_it_was(backup: Backup, run: Run, in_folder: Path) -> None:
    write_config(in_folder, backup.database)
    performed: list[str] = []
    handled: list[str] = []
    inbox = make_shop(backup.database, performed, handled)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_done"))
        await drain(inbox, effects=False)  # handled, and its effect waits
        held = await deliver(inbox, "stripe", stripe_body("evt_held"))
        await inbox._runtime.store.leases.take(1, 0.5, "a worker that the backup knows")
        await deliver(inbox, "stripe", stripe_body("evt_waits"))
        backup.make()  # nothing is stopped for it
        lost = await deliver(inbox, "stripe", stripe_body("evt_lost"))
        assert lost.outcome == (202, "accepted")
        await until_handled(inbox, handled, {"evt_done", "evt_held", "evt_waits", "evt_lost"})
    before = list(performed)
    assert len(set(before)) == len(before) == 4

    restored = backup.restore()
    write_config(in_folder, restored)
    assert "up to date" in (await in_thread(run, "migrate")).out
    assert (await in_thread(run, "doctor")).code == 0
    last = await in_thread(run, "events", "--limit", "1", "--json")
    assert "evt_waits" in last.out
    waiting = await in_thread(run, "effects", "--status", "waiting", "--json")
    assert waiting.out.count("receipt:") == 1 and "receipt:evt_done" in waiting.out

    handled.clear()
    performed.clear()
    again = make_shop(restored, performed, handled)
    async with again.lifespan():
        assert (await deliver(again, "stripe", stripe_body("evt_done"))).outcome == (200, "duplicate")
        assert (await deliver(again, "stripe", stripe_body("evt_waits"))).outcome == (200, "duplicate")
        came_again = await deliver(again, "stripe", stripe_body("evt_lost"))
        assert came_again.outcome == (202, "accepted")
        await until_handled(again, handled, {"evt_held", "evt_waits", "evt_lost"})
        await drain(again)
    assert sorted(handled) == ["evt_held", "evt_lost", "evt_waits"]  # and not what was handled before the backup
    assert sorted(performed) == sorted(before)  # the same keys as the first time
    assert held.receipt is not None and came_again.receipt is not None and came_again.receipt > held.receipt
    assert ask(restored, "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(4,)]


async def until_handled(inbox: Inbox, handled: list[str], wanted: set[str]) -> None:
    async with asyncio.timeout(30):
        inbox._runtime.start_worker()
        while not wanted <= set(handled):
            await asyncio.sleep(0.05)
        while (await inbox._runtime.store.effects.counts()).get("done", 0) < 4:
            await asyncio.sleep(0.05)
        await inbox._runtime.stop_work()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_restored_dump_has_its_days_and_can_be_pruned(
    backup: Backup, make_inbox: Callable[..., Inbox], run: Run, in_folder: Path
) -> None:
    write_config(in_folder, backup.database)
    async with make_inbox().lifespan():
        pass
    days = (
        "SELECT count(*), min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass"
    )
    there = ask(backup.database, days)
    backup.make()
    restored = backup.restore()
    assert ask(restored, days) == there and there[0][0] > 1
    write_config(in_folder, restored)
    assert (await in_thread(run, "prune", "--dry-run")).code in (0, 1)
    assert (await in_thread(run, "prune")).code in (0, 1)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_copy_of_the_live_file_alone_is_no_backup(inbox: Inbox, database: str, tmp_path: Path) -> None:
    """Why the runbook says so."""
    assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 202
    copied = tmp_path / "copied.db"
    shutil.copy(database.removeprefix("sqlite:///"), copied)
    try:
        found = ask(f"sqlite:///{copied}", "SELECT event_id FROM webhook_receipts")
    except sqlite3.OperationalError:  # not even the tables
        found = []
    assert found == []
    assert ask(database, "SELECT event_id FROM webhook_receipts") == [("evt_1",)]
