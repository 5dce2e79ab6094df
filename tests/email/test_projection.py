"""Projections: after the handler, whatever it takes; and built only where a source asks for one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Inbox
from tests.email.test_email import JANE, make, postmark_bounce, send, settled
from tests.support.events import Rows

pytestmark = pytest.mark.anyio

SUPPRESSED = "SELECT count(*) FROM webhook_suppressions"


@pytest.mark.parametrize("kind", ["async", "async with tx", "plain", "plain with tx"])
async def test_the_email_tables_follow_the_handler_whatever_it_takes(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, kind: str
) -> None:
    inbox = make(make_inbox)
    before: list[Any] = []

    async def handle(event: Event) -> None:
        before.append(rows(SUPPRESSED))

    async def handle_with(event: Event, tx: Any) -> None:
        before.append([(await tx.fetchval(SUPPRESSED),)])

    def handle_plain(event: Event) -> None:
        before.append(rows(SUPPRESSED))

    def handle_plain_with(event: Event, tx: Any) -> None:
        before.append([(tx.fetchval(SUPPRESSED),)])

    handlers = {"async": handle, "async with tx": handle_with, "plain": handle_plain}
    inbox.on("postmark", "*")(handlers.get(kind, handle_plain_with))
    async with inbox.lifespan():
        await send(inbox, "postmark", postmark_bounce())
        await settled(inbox, database)
        assert not await inbox.email.can_send(JANE)
    assert before == [[(0,)]]


WITHOUT_EMAIL = """
import asyncio, sys

class Removed:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in (["oncehook", "email"], ["oncehook", "alerts"]):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Removed())
from oncehook import Inbox
from oncehook.testing import deliver, drain

inbox = Inbox("sqlite:///inbox.db", worker=False)
inbox.source("stripe", secrets=["whsec_test"])
seen = []
inbox.on("stripe", "*")(lambda event: seen.append(event.id))

async def main():
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", type="invoice.paid")).status == 202
        await drain(inbox)

asyncio.run(main())
assert len(seen) == 1
from click.testing import CliRunner
from oncehook.cli import oncehook
for command in (["events"], ["prune"], ["stats"], ["forget", "--object", "nothing"]):
    done = CliRunner().invoke(oncehook, command, env={"ONCEHOOK_DATABASE": "sqlite:///inbox.db"})
    assert done.exit_code == (1 if command[0] == "forget" else 0), (command, done.output, done.exception)
"""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_an_inbox_works_without_the_packages_of_email_and_alerts(tmp_path: Path, database: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EMAIL], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
