"""The command line, as a person and as a program use it: what it prints, and its exit codes 0, 1 and 2."""

import asyncio
import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.cli import COMMANDS, main
from oncehook.config.configuration import load
from oncehook.operations import selection
from oncehook.testing import deliver, post
from tests.support.events import EVENT_KEYS, Rows, stripe_body, stripe_headers
from tests.support.serve import write_config


@dataclass
class Ran:
    """What a command did."""

    code: int
    raw: bytes
    error: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line as its entry point does."""
    monkeypatch.setenv("COLUMNS", "220")

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["oncehook", *arguments])
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, error = capsysbinary.readouterr()
        assert isinstance(ended.value.code, int)
        assert b"Traceback" not in error
        return Ran(ended.value.code, out, error.decode())

    return call


@pytest.fixture
def config(tmp_path: Path, database: str) -> str:
    return str(write_config(tmp_path, database))


def take(inbox: Inbox, *bodies: bytes, live: bytes | None = None) -> None:
    """Have an inbox take these deliveries, and stop."""

    async def deliver_all() -> None:
        async with inbox.lifespan():
            for body in bodies:
                await deliver(inbox, "stripe", body)
            if live is not None:
                await post(inbox, "live", live, stripe_headers(live, "whsec_live"))

    asyncio.run(deliver_all())


@pytest.fixture
def filled(make_inbox: Callable[..., Inbox], config: str) -> None:
    """An inbox that has taken six events and a duplicate, and has stopped."""
    inbox = make_inbox(config=config)
    inbox.source("live", provider="stripe", secrets=["whsec_live"])
    types = ["invoice.paid", "invoice.paid", "invoice.voided", "charge.refunded"]
    bodies = [stripe_body(f"evt_{n}", type_, data={"object": {"id": f"in_{n}"}}) for n, type_ in enumerate(types, 1)]
    take(inbox, *bodies, stripe_body("evt_1", other=True), b'{"note": "no id"}', live=stripe_body("evt_1"))


def found(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.error
    return [f"{line['source']}/{line['event_id'][:7]}" for line in ran.lines]


# -- help and mistakes ----------------------------------------------------------------------------------------------


def test_help_names_every_command_and_each_has_its_own(run: Run) -> None:
    shown = run("--help")
    assert shown.code == 0
    for name, summary in COMMANDS.items():
        assert name in shown.out and summary in shown.out
        own = run(name, "--help")
        assert own.code == 0 and f"oncehook {name}" in own.out
    assert run("-h").out == shown.out
    assert run("--version").out.startswith("oncehook 0.")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["events", "--nonsense"], ["events", "--status", "done"], ["events", "--since", "yesterday"]],
    ids=" ".join,
)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_bad_usage_is_told_with_exit_code_2(run: Run, arguments: list[str], config: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and ran.raw == b""
    assert arguments[-1].lstrip("-") in ran.error


# -- events ---------------------------------------------------------------------------------------------------------


def test_events_as_json_are_one_object_a_line_with_the_promised_keys(
    run: Run, config: str, filled: None, rows: Rows
) -> None:
    ran = run("events", "--config", config, "--json")
    shas = "stripe/sha256:"
    assert found(ran) == ["live/evt_1", shas, "stripe/evt_4", "stripe/evt_3", "stripe/evt_2", "stripe/evt_1"]
    assert all(sorted(line) == sorted(EVENT_KEYS) for line in ran.lines)
    assert [line["duplicates"] for line in ran.lines] == [0, 0, 0, 0, 0, 1]
    assert [line["receipt"] for line in ran.lines] == [
        r for (r,) in rows("SELECT id FROM webhook_receipts ORDER BY 1 DESC")
    ]


EVENTS: dict[str, list[str]] = {
    "--source live": ["live/evt_1"],
    "--type invoice --source stripe": ["stripe/evt_3", "stripe/evt_2", "stripe/evt_1"],
    "--type *.refunded": ["stripe/evt_4"],
    "--object in_2": ["stripe/evt_2"],
    "--status failed": ["stripe/sha256:"],
    "--search evt_3": ["stripe/evt_3"],
    "--since 1h --limit 2": ["live/evt_1", "stripe/sha256:"],
    "--until 2099-01-01 --type charge": ["stripe/evt_4"],
}


@pytest.mark.parametrize(("options", "expected"), EVENTS.items())
def test_events_are_found_by_each_option(
    run: Run, config: str, filled: None, options: str, expected: list[str]
) -> None:
    assert found(run("events", "--config", config, "--json", *options.split())) == expected


def test_events_go_on_page_by_page_up_to_the_limit(
    run: Run, config: str, filled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = found(run("events", "--config", config, "--json"))
    monkeypatch.setattr(selection, "PAGE", 2)
    assert found(run("events", "--config", config, "--json")) == whole
    assert found(run("events", "--config", config, "--json", "--limit", "5")) == whole[:5]


def test_events_that_do_not_match_are_exit_code_1(run: Run, config: str, filled: None) -> None:
    for options in (["--source", "nobody"], ["--until", "2020-01-01"], ["--search", "nothing like it"]):
        ran = run("events", "--config", config, *options)
        assert (ran.code, ran.out, ran.error) == (1, "", "no event matches\n")
        ran = run("events", "--config", config, "--json", *options)
        assert (ran.code, ran.out) == (1, "")


def test_events_for_people_are_a_table_that_no_sender_can_break(
    run: Run, config: str, make_inbox: Callable[..., Inbox]
) -> None:
    take(make_inbox(config=config), stripe_body("evt_[red]\x1b[2J\u202e", "a\nb"))
    ran = run("events", "--config", config)
    head, row = ran.out.splitlines()
    assert head.split() == ["received", "source", "type", "object", "event", "id", "status", "dup", "receipt"]
    assert r"evt_[red]\x1b[2J\u202e" in row and r"a\nb" in row and row.isprintable()


def test_a_look_at_no_inbox_is_told_and_creates_none(run: Run, tmp_path: Path) -> None:
    config = write_config(tmp_path, f"sqlite:///{tmp_path / 'nowhere.db'}")
    for command in (["events"], ["show", "1"]):
        ran = run(*command, "--config", str(config))
        assert ran.code == 2 and "there is no database at" in ran.error
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.without_schema
def test_a_look_at_an_old_schema_says_what_to_run(run: Run, config: str, database: str) -> None:
    if database.startswith("sqlite"):
        Path(database.removeprefix("sqlite:///")).touch()
    ran = run("events", "--config", config)
    assert ran.code == 2 and "oncehook migrate" in ran.error


# -- show -----------------------------------------------------------------------------------------------------------


def test_show_by_number_and_by_event_id(run: Run, config: str, filled: None, rows: Rows) -> None:
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_2'")
    by_number, by_id = run("show", str(receipt), "--config", config), run("show", "evt_2", "--config", config)
    assert by_number.code == 0 and by_number.out == by_id.out
    for part in ("evt_2", "invoice.paid", "in_2", "received", "content-type", '"created": 1763200000'):
        assert part in by_number.out


def test_show_as_json_has_the_event_its_payload_headers_and_deliveries(
    run: Run, config: str, filled: None, rows: Rows
) -> None:
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_1' AND source = 'stripe'")
    (shown,) = run("show", str(receipt), "--config", config, "--json").lines
    assert set(shown) == {
        *EVENT_KEYS,
        "payload",
        "headers",
        "deliveries",
        "attempts_history",
        "replays_history",
        "effects",
        "noops",
        "entities",
    }
    assert shown["payload"] == json.loads(stripe_body("evt_1", data={"object": {"id": "in_1"}}))
    assert shown["headers"] == {"content-type": "application/json"}
    assert [(d["same_body"], set(d)) for d in shown["deliveries"]] == [
        (False, {"received_at", "delivery_id", "same_body"})
    ]
    assert "with a different body" in run("show", str(receipt), "--config", config).out


def test_show_raw_is_the_body_byte_for_byte(run: Run, config: str, make_inbox: Callable[..., Inbox]) -> None:
    body = b'{"id":"evt_1",  "type":"a",\r\n"text":"\xc3\xa9\\u0000\\ud800"}\n\n'
    take(make_inbox(config=config), body)
    ran = run("show", "evt_1", "--config", config, "--raw")
    assert (ran.code, ran.raw) == (0, body)
    assert run("show", "evt_1", "--config", config).code == 0
    assert run("show", "evt_1", "--config", config, "--json").code == 0


def test_show_finds_an_event_by_its_id_though_many_later_ones_mention_it(
    run: Run, config: str, make_inbox: Callable[..., Inbox]
) -> None:
    later = [stripe_body(f"evt_{n}", previous="evt_1") for n in range(2, 30)]
    take(make_inbox(config=config), stripe_body("evt_1"), *later)
    ran = run("show", "evt_1", "--config", config, "--json")
    assert ran.code == 0 and ran.lines[0]["event_id"] == "evt_1"


def test_show_of_what_is_not_there_or_not_clear(run: Run, config: str, filled: None, rows: Rows) -> None:
    for name in ("evt_99", "99999", "9" * 30, "-1"):
        ran = run("show", "--config", config, "--", name)
        assert ran.code == 1 and name in ran.error and ran.raw == b""
    ran = run("show", "evt_1", "--config", config)
    assert ran.code == 2 and "several sources" in ran.error and "live" in ran.error
    rows("DELETE FROM webhook_payloads")
    assert "pruned" in run("show", "evt_2", "--config", config).out
    assert run("show", "evt_2", "--config", config, "--raw").code == 1


# -- init and migrate -----------------------------------------------------------------------------------------------


def test_init_writes_what_serve_can_start_from_and_never_overwrites(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "services" / "webhooks"
    ran = run("init", "--folder", str(target))
    assert ran.code == 0 and "oncehook serve" in ran.out
    assert load(target / "oncehook.toml").settings.database == "sqlite:///oncehook.db"
    compile((target / "hooks.py").read_text(), "hooks.py", "exec")
    (target / "hooks.py").write_text("mine")
    ran = run("init", "--folder", str(target))
    assert ran.code == 1 and "not changed" in ran.error
    assert (target / "hooks.py").read_text() == "mine"
    (target / "oncehook.toml").unlink()
    assert run("init", "--folder", str(target)).code == 0
    assert (target / "hooks.py").read_text() == "mine"


def test_what_init_has_commented_out_is_a_configuration_that_works(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "--folder", str(tmp_path))
    file = tmp_path / "oncehook.toml"
    lines = file.read_text().splitlines()
    code = [line[2:] if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line for line in lines]
    tomllib.loads("\n".join(code))
    file.write_text("\n".join(line for line in code if not line.startswith(("Every", "Secrets"))))
    for name in ("STRIPE_WEBHOOK_SECRET", "GITHUB_WEBHOOK_SECRET", "STRIPE_TEST_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "whsec_x")
    monkeypatch.setenv("FORWARD_SECRET", "whsec_c2lnbnMgd2hhdCBpcyBmb3J3YXJkZWQ=")
    monkeypatch.setenv("SLACK_ALERTS_URL", "https://chat.example.com/hook")
    inbox = Inbox(config=str(file))
    assert sorted(inbox._runtime.sources) == ["github", "stripe", "stripe-test"] and list(
        inbox._runtime.alerts.settings.targets
    ) == ["chat"]


@pytest.mark.without_schema
def test_migrate_prints_applies_and_then_has_nothing_to_do(run: Run, config: str, database: str, rows: Rows) -> None:
    printed = run("migrate", "--config", config, "--sql")
    assert printed.code == 0
    assert "-- 001_" in printed.out and "CREATE TABLE webhook_receipts" in printed.out
    if database.startswith("sqlite"):
        assert not Path(database.removeprefix("sqlite:///")).exists()
    else:
        assert rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'webhook%'") == [(0,)]
    applied = run("migrate", "--config", config)
    assert applied.code == 0 and applied.out.startswith("applied 001_")
    again = run("migrate", "--config", config)
    assert (again.code, again.out) == (0, "the schema is up to date\n")
    assert run("migrate", "--config", config, "--sql").out == ""
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


# -- providers ------------------------------------------------------------------------------------------------------


def test_providers_are_listed_and_explained(run: Run, in_folder: Path) -> None:
    listed = run("providers", "--json")
    assert listed.code == 0
    names = [line["name"] for line in listed.lines]
    assert names == sorted(names) and {"stripe", "github", "sendgrid", "ses"} <= set(names)
    shown = run("providers").out
    assert all(name in shown for name in names)
    one = run("providers", "stripe")
    assert one.code == 0 and "Signing secret" in one.out and "hmac-sha256" in one.out
    (row,) = run("providers", "stripe", "--json").lines
    assert row["name"] == "stripe" and row["retry_horizon"] == "3d"
    unknown = run("providers", "strip")
    assert unknown.code == 1 and "strip" in unknown.error
