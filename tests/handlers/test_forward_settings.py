"""The settings of a forward: which addresses, secrets and headers are allowed, and the announcement."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Inbox
from oncehook.cli.serve import announce, listen
from oncehook.model.receipt import Filter
from oncehook.operations.rehearse import rehearse
from tests.support.forwarding import running_inbox
from tests.support.http_target import (
    receiving,
)
from tests.support.servers import run_sql
from tests.support.tls_server import Canary
from tests.support.waiting import eventually
from tests.support.work import STATES, claim, receipts_are

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"a secret of this test, 32 bytes.").decode()


async def test_forward_address_in_code_must_be_public(make_inbox: Callable[..., Inbox], database: str) -> None:
    with Canary() as canary:
        inbox = make_inbox(worker=False)
        inbox.source("stripe", secrets=["whsec_test"], forward=f"http://localhost:{canary.port}/")
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await eventually(receipts_are(database, "retrying", 1))
    assert canary.connections == 0
    (state,) = run_sql(database, STATES)
    assert state[4].startswith("SendRefused: localhost has the address ") and "configuration file" in state[4]


async def test_rehearsal_does_not_call_the_forward_address(forward_config: Callable[..., Path]) -> None:
    async with receiving() as receiver, running_inbox(forward_config(receiver.url)) as inbox:
        await claim(inbox, "evt_1")
        (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
        rehearsal = await rehearse(inbox._runtime.store, inbox._runtime.handlers, receipt)
        assert (rehearsal.handler, rehearsal.error) == (f"forward to http://127.0.0.1:{receiver.port}", None)
        assert receiver.connections == 0


def test_forward_and_handler_for_one_source_are_an_error_in_either_order(tmp_path: Path) -> None:
    async def handle(event: Event) -> None: ...

    for pattern in ("push", "*"):
        sentence = r"handle would never be called: sources\.github\.forward handles every event"
        first = Inbox(f"sqlite:///{tmp_path}/a.db")
        first.source("github", secrets=["x"], forward="https://example.com/")
        with pytest.raises(ConfigurationError, match=sentence):
            first.on("github", pattern)(handle)
        second = Inbox(f"sqlite:///{tmp_path}/b.db")
        second.on("github", pattern)(handle)
        with pytest.raises(ConfigurationError, match=sentence):
            second.source("github", secrets=["x"], forward="https://example.com/")


HIDDEN = "hidden-value"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"forward": f"http://user:{HIDDEN}@host/"}, "sources.github.forward is not usable: expected an address"),
    ({"forward": "localhost:3000"}, "sources.github.forward is not usable: expected an address"),
    ({"forward": ""}, "sources.github.forward is not usable: expected a string"),
    ({"forward_secret": HIDDEN}, "sources.github.forward_secret cannot sign: it is not base64"),
    ({"forward_secret": "whsec_"}, "sources.github.forward_secret cannot sign: it is empty"),
    ({"forward_secret": f"whsk_{HIDDEN}"}, "sources.github.forward_secret cannot sign: it is not a key"),
    ({"forward_secret": 7}, "sources.github.forward_secret is not usable"),
    ({"forward_concurrency": 0}, "sources.github.forward_concurrency is 0"),
    ({"forward_timeout": "soon"}, "expected a duration"),
    ({"forward_headers": ["X-A", "Authorization"]}, "lists Authorization, which is never passed on"),
    ({"forward_headers": ["webhook-id"]}, "lists webhook-id, which is never passed on"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG)
def test_invalid_forward_setting_is_an_error_that_shows_no_secret(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ConfigurationError) as caught:
        inbox.source("github", secrets=["x"], **{"forward": "https://example.com/", **settings})
    assert sentence in str(caught.value)
    assert HIDDEN not in str(caught.value)


def test_serve_announces_where_events_are_forwarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/a.db")
    inbox.source("github", secrets=["x"], forward=f"https://example.com/{HIDDEN}")
    inbox.source("stripe", secrets=["x"], forward="https://example.com/", forward_secret=SECRET)
    with listen("127.0.0.1", 0) as listener:
        announce(inbox._runtime, listener)
    output = capsys.readouterr().out
    assert "GitHub   → https://example.com, unsigned" in output
    assert "Stripe   → https://example.com\n" in output
    assert HIDDEN not in output


@pytest.mark.anyio
async def test_serve_announces_the_consumers_with_their_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/a.db", worker=True)
    inbox.source("stripe", secrets=["x"])
    inbox.source("github", secrets=["x"])
    inbox.consumer("analytics", sources=["stripe", "github"], forward=f"https://example.com/{HIDDEN}")
    inbox.on("stripe", "*", consumer="ledger")(lambda event: None)
    async with inbox.lifespan():
        with listen("127.0.0.1", 0) as listener:
            announce(inbox._runtime, listener)
    lines = capsys.readouterr().out.splitlines()
    assert "  consumer analytics   github, stripe   → https://example.com, unsigned" in lines
    assert "  consumer ledger      stripe" in lines
    assert not [line for line in lines if "no handler in this process" in line or HIDDEN in line]


def test_serve_announces_no_consumers_if_there_is_only_main(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/a.db")
    inbox.source("stripe", secrets=["x"])
    with listen("127.0.0.1", 0) as listener:
        announce(inbox._runtime, listener)
    assert "consumer" not in capsys.readouterr().out
