"""`oncehook sources`: its messages, its JSON, its exit codes, and no secret in any of them."""

import io
import json
from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.events import Rows
from tests.support.managed import FIRST, KEY, OTHER_KEY, SECOND

ADD = ("sources", "add", "acme", "--provider", "stripe", "--secret", FIRST)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEHOOK_KEYS", KEY)


def test_source_is_added_rotated_listed_and_removed(run: Run, config: Path, key: None, rows: Rows) -> None:
    added = run(*ADD, "--set", 'types=["invoice.*"]', "--set", "timeout=10s", "--actor", "ann")
    assert (added.code, added.error) == (0, "") and added.out.startswith("acme is added; every process")
    assert run("sources", "rotate", "acme", "--secret", SECOND, "--grace", "1h").out.startswith("acme has a new secret")
    (row,) = run("sources", "list", "--json").lines
    assert (row["source"], row["provider"]) == ("acme", "stripe")
    assert row["settings"] == {"types": ["invoice.*"], "timeout": "10s"}
    assert len({secret["fingerprint"] for secret in row["secrets"]}) == 2 and row["secrets"][0]["last_used_at"] is None
    listed = run("sources", "list").out
    assert "acme" in listed and "never" in listed and "whsec" not in listed
    assert run("sources", "rotate", "acme", "--finish").code == 0
    assert len(run("sources", "list", "--json").lines[0]["secrets"]) == 1
    assert run("sources", "remove", "acme", "--json").lines == [{"source": "acme", "result": "is removed"}]
    empty = run("sources", "list")
    assert (empty.code, empty.out) == (1, "") and "oncehook sources add" in empty.error
    actors = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert actors[0] == ("ann", "add_source") and "@" in actors[1][0]
    assert FIRST not in added.out + listed


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_secret_is_read_from_references_and_standard_input(
    run: Run, config: Path, key: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACME_SECRET", FIRST)
    (tmp_path / "secret").write_text(f"{SECOND}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("whsec_from_stdin\n\n"))
    options = ("--secret", "env:ACME_SECRET", "--secret", f"file:{tmp_path}/secret", "--secret-stdin")
    assert run("sources", "add", "acme", "--provider", "stripe", *options).code == 0
    monkeypatch.delenv("ACME_SECRET")
    (tmp_path / "secret").unlink()
    (row,) = run("sources", "list", "--json").lines
    assert len(row["secrets"]) == 3, "the references were read once"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("add", "acme", "--provider", "strpe", "--secret", "x"), 2, "did you mean stripe"),
        (("add", "acme", "--provider", "stripe", "--secret", "env:NOT_SET"), 2, "set NOT_SET in the environment"),
        (("add", "acme", "--provider", "stripe", "--secret", "x", "--set", "typs=[]"), 2, "did you mean sources.acme."),
        (("add", "acme", "--provider", "stripe", "--secret", "x", "--set", "types"), 2, "key=value"),
        (("add", "acme", "--provider", "stripe", "--set", "secrets=x"), 2, "use --secret"),
        (("add", "acme", "--provider", "stripe", "--set", "mode=a", "--set", "mode=b"), 2, "--set mode is repeated"),
        (("add", "stripe", "--secret", "x"), 2, "in the configuration or in code"),
        (("rotate", "acme"), 2, "--secret"),
        (("rotate", "acme", "--finish", "--grace", "1h"), 2, "without --secret and --grace"),
        (("rotate", "acme", "--secret", "x", "--grace", "soon"), 2, "soon"),
        (("rotate", "acme", "--secret", "x", "--grace", "9999999d"), 2, "at most 366d"),
        (("rotate", "acme", "--secret", "x"), 2, "there is no managed source acme"),
        (("remove", "acme"), 2, "there is no managed source acme: there are no managed sources"),
        (("remove", "stripe"), 2, "change it there"),
    ],
)
def test_mistake_is_reported_in_a_sentence(
    run: Run, config: Path, key: None, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ran = run("sources", *arguments)
    assert ran.code == code and message in ran.error, ran.error


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_without_a_key_the_command_says_how_to_get_one(run: Run, config: Path) -> None:
    ran = run(*ADD)
    assert ran.code == 2 and "oncehook keys generate" in ran.error and FIRST not in ran.error


def test_source_of_a_lost_key_is_listed_and_removed_and_added_again(
    run: Run, config: Path, key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*ADD).code == 0
    monkeypatch.setenv("ONCEHOOK_KEYS", OTHER_KEY)
    refused = run("sources", "rotate", "acme", "--secret", SECOND)
    assert refused.code == 2 and "add this key" in refused.error
    (row,) = run("sources", "list", "--json").lines
    assert (row["source"], row["is_usable"], row["secrets"]) == ("acme", False, [])
    assert "cannot be used" in run("sources", "list").out
    assert run("keys", "abandon", "test", "--yes").code == 0
    assert run("sources", "remove", "acme").code == 0
    assert run(*ADD).code == 0
    (row,) = run("sources", "list", "--json").lines
    assert row["is_usable"] and len(row["secrets"]) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_empty_standard_input_is_an_error(run: Run, config: Path, key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in (("\n", "standard input has no secret"), ("env:HOME\n", "pass a reference with --secret")):
        monkeypatch.setattr("sys.stdin", io.StringIO(content))
        ran = run("sources", "add", "acme", "--provider", "stripe", "--secret-stdin")
        assert ran.code == 2 and message in ran.error


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_other_commands_know_a_managed_source(run: Run, config: Path, key: None) -> None:
    run(*ADD)
    assert run("pause", "acme").code == 0
    assert [row["source"] for row in run("secrets", "--json").lines if row["source"] == "acme"] == ["acme"]
    assert "source acme: this app has no handler" in run("doctor").out
    assert run("send", "acme", "invoice.paid", "--port", "1").code == 1, "the command signs, and no server listens"
    assert "did you mean stripe" in run("send", "strpe", "invoice.paid").error
    assert run("doctor", "signature", "acme").error == "there are no rejection samples\n"
    with config.open("a") as file:
        file.write("[alerts.sources.acme]\nlag = '5m'\n")
    assert run("alerts").code == 0
    run("sources", "remove", "acme")
    assert run("alerts").code == 0, "thresholds of a removed source stay valid"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_dump_of_the_database_has_no_secret(run: Run, config: Path, key: None, rows: Rows) -> None:
    run(*ADD, "--set", "verify_token=token-in-the-dump")
    run("sources", "rotate", "acme", "--secret", SECOND)
    tables = [name for (name,) in rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    dump = json.dumps([[str(row) for row in rows(f"SELECT * FROM {table}")] for table in tables])
    assert "add_source" in dump and not any(value in dump for value in (FIRST, SECOND, "token-in-the-dump", KEY[5:]))
