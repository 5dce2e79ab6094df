"""`--app`: an inbox whose database is named in code is looked at without a configuration file."""

from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.receipt import State
from tests.events import make_claim
from tests.running import Run
from tests.test_cli_work import on_store

HOOKS = """
from oncehook import Inbox

inbox = Inbox("sqlite:///shop.db")
inbox.source("stripe", secrets=["whsec_test"])
"""


@pytest.fixture
def shop(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEHOOK_CONFIG", raising=False)
    (in_folder / "hooks.py").write_text(HOOKS)
    facts = {"status": State.FAILED, "outcome": "failed", "error": "KeyError: 'in_1'"}
    on_store(lambda **given: Inbox("sqlite:///shop.db", **given), make_claim("evt_1"), **facts)


def test_every_look_takes_the_app(run: Run, shop: None) -> None:
    (event,) = run("events", "--app", "hooks:inbox", "--json").lines
    assert event["event_id"] == "evt_1"
    assert run("show", "evt_1", "--app", "hooks:inbox").code == 0
    assert "KeyError" in run("dead", "--app", "hooks:inbox").out
    assert run("stats", "--app", "hooks:inbox", "--json").lines[0]["failed"] == 1
    assert run("effects", "--app", "hooks:inbox").code == 1  # there are none


def test_without_it_the_sentence_says_how(run: Run, shop: None) -> None:
    told = run("events")
    assert told.code == 2 and "--app module:inbox" in told.error
    wrong = run("events", "--app", "nowhere:inbox")
    assert wrong.code == 2 and "there is no module nowhere" in wrong.error
