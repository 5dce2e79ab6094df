"""The inbox of a command: the argument APP, `--app`, or `app` in oncehook.toml."""

from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.states import State
from tests.support.command_line import Run
from tests.support.events import make_claim
from tests.support.work import claim_and_settle

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
    claim_and_settle(lambda **given: Inbox("sqlite:///shop.db", **given), make_claim("evt_1"), **facts)


def test_every_command_accepts_the_app_option(run: Run, shop: None) -> None:
    (event,) = run("events", "--app", "hooks:inbox", "--json").lines
    assert event["event_id"] == "evt_1"
    assert run("show", "evt_1", "--app", "hooks:inbox").code == 0
    assert "KeyError" in run("dead", "--app", "hooks:inbox").out
    assert run("stats", "--app", "hooks:inbox", "--json").lines[0]["failed"] == 1
    assert run("effects", "--app", "hooks:inbox").code == 1  # there are none


def test_without_the_app_the_message_names_the_option(run: Run, shop: None) -> None:
    ran = run("events")
    assert ran.code == 2 and "--app module:inbox" in ran.error
    wrong = run("events", "--app", "nowhere:inbox")
    assert wrong.code == 2 and "there is no module nowhere" in wrong.error


SECOND = HOOKS.replace("shop.db", "second.db")


def name_app(folder: Path, app: str) -> None:
    (folder / "oncehook.toml").write_text(f'app = "{app}"\n')


def test_every_command_uses_the_app_of_the_file(run: Run, shop: None, in_folder: Path) -> None:
    name_app(in_folder, "hooks:inbox")
    assert run("events", "--json").lines[0]["event_id"] == "evt_1"
    assert run("show", "evt_1").code == 0
    assert "KeyError" in run("dead").out
    assert run("stats", "--json").lines[0]["failed"] == 1
    assert "up to date" in run("migrate").out
    assert run("email", "suppressed").code == 1  # no address is suppressed, and the database was found
    assert run("secrets", "--json").lines[0]["source"] == "stripe"
    assert run("pause", "stripe").code == 0
    assert run("doctor", "signature").code == 1
    assert "ok" in run("doctor").out
    assert run("alerts").code == 0
    assert "stripe" in run("prune", "--dry-run").out
    assert run("replay", "evt_1").code == 0
    assert not (in_folder / "oncehook.db").exists()  # no command has looked in the default database


def test_the_option_and_the_argument_override_the_app_of_the_file(run: Run, shop: None, in_folder: Path) -> None:
    name_app(in_folder, "second:inbox")
    (in_folder / "second.py").write_text(SECOND)
    assert "there is no database at second.db" in run("events").error
    assert run("events", "--app", "hooks:inbox").code == 0
    assert run("prune", "hooks:inbox", "--dry-run").code == 0
    assert run("prune", "--app", "hooks:inbox", "--dry-run").code == 0
    both = run("prune", "hooks:inbox", "--app", "second:inbox")
    assert both.code == 2 and "use only one of them" in both.error
    assert "there is no database at oncehook.db" in run("events", "--app", "").error


def test_the_environment_overrides_the_app_of_the_file(
    run: Run, shop: None, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_app(in_folder, "nowhere:inbox")
    monkeypatch.setenv("ONCEHOOK_APP", "hooks:inbox")
    assert run("events").code == 0


@pytest.mark.parametrize(
    ("app", "code", "sentence"),
    [
        ("hooks", "", "the app hooks is not of the form module:inbox"),
        ("missing_module:inbox", "", "there is no module missing_module"),
        ("hooks:outbox", HOOKS, "hooks has no outbox: did you mean hooks:inbox?"),
        ("hooks:inbox", "inbox = 3\n", "hooks:inbox is a int, not an Inbox"),
        ("hooks:inbox", "import json\n\ninbox = json.loads('{')\n", "JSONDecodeError"),
        ("hooks:inbox", "import json\n\ninbox = json.loads('{')\n", "(hooks.py:3)"),
        ("hooks:inbox", "import no_such_package\n", "No module named 'no_such_package' (hooks.py:1)"),
        ("hooks:inbox", "1 / 0\n", 'If the command needs no handlers, add --app ""'),
        ("hooks:inbox", "\ninbox = (\n", "SyntaxError"),
        ("hooks:inbox", "\ninbox = (\n", "(hooks.py:2)"),
    ],
)
@pytest.mark.parametrize("command", [["events"], ["serve", "--port", "0"], ["worker"]])
def test_an_invalid_app_is_reported_in_one_line(
    run: Run, in_folder: Path, app: str, code: str, sentence: str, command: list[str]
) -> None:
    name_app(in_folder, app)
    (in_folder / "hooks.py").write_text(code)
    ran = run(*command)
    assert ran.code == 2 and sentence in ran.error and "Traceback" not in ran.error
    assert len(ran.error.splitlines()) == 1


def test_tables_of_the_file_that_the_app_does_not_use_are_named(run: Run, shop: None, in_folder: Path) -> None:
    file = in_folder / "oncehook.toml"
    file.write_text(
        'app = "hooks:inbox"\n[sources.stripe]\nsecrets = ["whsec_test"]\n[sources.github]\nsecrets = ["s"]\n'
        '[consumers.ledger]\nrate = "2/s"\n'
    )
    (finding,) = [line for line in run("doctor", "--json").lines if "does not use" in line["message"]]
    assert finding["level"] == "wrong" and "has [sources.github], [consumers.ledger], which" in finding["message"]
    (in_folder / "whole.py").write_text("from oncehook import Inbox\n\ninbox = Inbox()\n")
    assert "does not use" not in run("doctor", "--app", "whole:inbox").out
