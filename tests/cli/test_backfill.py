"""`oncehook backfill`: its messages, its JSON and its exit codes."""

from collections.abc import Callable
from pathlib import Path

import pytest

import oncehook.operations.backfill as backfill_module
from oncehook import Inbox
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim
from tests.support.work import claim_and_settle

LEDGER = """
@inbox.on("stripe", "invoice.*", consumer="ledger")
async def book(event: Event) -> None: ...
"""


@pytest.fixture
def received(hooks: Path, make_inbox: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three events that arrived before the app had the consumer `ledger`."""
    monkeypatch.setattr(backfill_module, "KNOWN_AFTER", 0.0)
    events = [make_claim("evt_1"), make_claim("evt_2"), make_claim("evt_3", type="charge.failed")]
    claim_and_settle(make_inbox, *events)
    with hooks.with_name("hooks.py").open("a") as file:
        file.write(LEDGER)


def test_dry_run_counts_and_a_backfill_writes(run: Run, received: None, rows: Rows) -> None:
    app = ("--app", "hooks:inbox")
    ran = run("backfill", "ledger", "--since", "1d", "--dry-run", *app)
    assert (ran.code, ran.out) == (0, "ledger would get 2 events; nothing was changed\n")
    assert ran.error == "skipped: 1 (not subscribed)\n"
    assert run("backfill", "ledger", "--since", "1d", "--rate", "5000/s", *app).out == "ledger gets 2 events\n"
    assert rows("SELECT count(*) FROM webhook_receipts WHERE consumer = 'ledger'") == [(2,)]
    ran = run("backfill", "ledger", "--since", "1d", *app)
    assert ran.code == 1 and ran.error.startswith("there is no event that ledger does not have\n")
    (line,) = run("backfill", "ledger", "--since", "1d", "--json", *app).lines
    assert (line["consumer"], line["created"], line["left"]) == ("ledger", 0, {"not subscribed": 1})


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ledger"], "Missing option '--since'"),
        (["ledger", "--since", "soon"], "'soon' is not a time"),
        (["ledger", "--since", "1d", "--rate", "fast"], "expected a rate such as 50/s"),
        (["legder", "--since", "1d"], "there is no consumer legder: did you mean ledger?"),
        (["main", "--since", "1d"], "the consumer main has a receipt of every event"),
        (["ledger", "--since", "1d", "--source", "github"], "does not subscribe to github; its sources are stripe"),
    ],
)
def test_wrong_arguments_are_rejected_with_exit_code_2(
    run: Run, received: None, arguments: list[str], message: str
) -> None:
    ran = run("backfill", *arguments, "--app", "hooks:inbox")
    assert ran.code == 2 and message in ran.error
