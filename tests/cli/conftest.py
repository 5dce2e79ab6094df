"""Fixtures of the command line's tests: a configuration, an app with handlers, and stored events."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.states import State
from oncehook.testing import deliver, post
from tests.support.events import Rows, make_claim, stripe_body, stripe_headers
from tests.support.serve import write_config
from tests.support.work import fill

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()
INSERT = "INSERT INTO ledger (event_id, note) VALUES ({placeholders})"


@inbox.on("stripe", "invoice.paid")
async def paid(event: Event, tx) -> None:
    await tx.execute(INSERT, event.id, "paid")


@inbox.on("stripe", "invoice.voided")
async def voided(event: Event, tx) -> None:
    await tx.execute(INSERT, event.id, "voided")
    raise LookupError("no such invoice")
"""


@pytest.fixture
def config(in_folder: Path, database: str) -> Path:
    """A configuration with a Stripe source, in the current folder."""
    return write_config(in_folder, database)


@pytest.fixture
def hooks(config: Path, database: str, rows: Rows) -> Path:
    """A configuration, an app with handlers, and the table that they write to."""
    placeholders = "$1, $2" if database.startswith("postgresql") else "?, ?"
    config.with_name("hooks.py").write_text(HOOKS.replace("{placeholders}", placeholders))
    rows("CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")
    return config


@pytest.fixture
def filled(hooks: Path, make_inbox: Callable[..., Inbox]) -> list[int]:
    """The receipts of three dead letters, a processed event, and one event that waits."""
    failed = {"status": State.FAILED, "outcome": "failed", "version": "v1"}
    return fill(
        make_inbox,
        ([make_claim("evt_1"), make_claim("evt_2")], failed | {"handler": "hooks.paid", "error": "KeyError: 'in_1'"}),
        (
            [make_claim("evt_3", type="invoice.voided")],
            failed | {"handler": "hooks.voided", "error": "LookupError: no such invoice"},
        ),
        ([make_claim("evt_4")], {"status": State.PROCESSED, "outcome": "processed", "version": "v2"}),
        ([make_claim("evt_5", source="live")], {}),
    )


Accept = Callable[..., None]


@pytest.fixture
def accept(make_inbox: Callable[..., Inbox], config: Path) -> Accept:
    """Accept deliveries of these bodies, in an inbox that then stops."""

    def deliver_all(*bodies: bytes, live: bytes | None = None) -> None:
        inbox = make_inbox(config=str(config))
        inbox.source("live", provider="stripe", secrets=["whsec_live"])

        async def run() -> None:
            async with inbox.lifespan():
                for body in bodies:
                    await deliver(inbox, "stripe", body)
                if live is not None:
                    await post(inbox, "live", live, stripe_headers(live, "whsec_live"))

        asyncio.run(run())

    return deliver_all


@pytest.fixture
def accepted(accept: Accept) -> None:
    """Six accepted events of two sources, one of them delivered twice and one without an id."""
    types = ["invoice.paid", "invoice.paid", "invoice.voided", "charge.refunded"]
    bodies = [stripe_body(f"evt_{n}", type_, data={"object": {"id": f"in_{n}"}}) for n, type_ in enumerate(types, 1)]
    accept(*bodies, stripe_body("evt_1", other=True), b'{"note": "no id"}', live=stripe_body("evt_1"))
