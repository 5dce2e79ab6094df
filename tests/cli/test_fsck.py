"""`oncehook fsck`: its report, its JSON, its exit codes."""

from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.events import Rows


def test_clean_database_is_reported_with_what_cannot_be_checked(run: Run, filled: list[int]) -> None:
    ran = run("fsck")
    assert ran.code == 0 and ran.out.endswith("\nno violation\n"), ran.out + ran.error
    lines = {line.split()[0]: line for line in ran.out.splitlines() if line.strip()}
    assert lines["I4"].split()[1:3] == ["checked", "5"]
    assert "cannot be checked here" in lines["I16"] and "I16: They belong to the process" in ran.out


def test_violation_names_its_receipts_and_what_to_do_and_exits_with_1(
    run: Run, filled: list[int], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.operations.fsck.AGAIN_SECONDS", 0)
    rows(f"DELETE FROM webhook_payloads WHERE receipt_id = {filled[0]}")
    ran = run("fsck")
    assert ran.code == 1 and ran.out.endswith("\n1 violation\n")
    assert "I1 is violated: An event that is not finished has no payload, so it cannot be handled." in ran.out
    assert f"  receipt {filled[0]}: failed without a payload\n  Restore these receipts from a backup" in ran.out
    assert ran.out.count("has no payload") == 1, "a check that is evidence for two guarantees is printed once"
    objects = {line["invariant"]: line for line in run("fsck", "--json", "--no-bodies").lines}
    assert objects["I12"]["status"] == "violated" and objects["I5"]["status"] == "checked"
    (violation,) = objects["I1"]["violations"]
    assert (violation["check"], violation["number"], violation["shard"]) == ("payload_missing", 1, "main")
    assert violation["rows"] == [{"receipt": filled[0], "detail": "failed without a payload"}]
    assert run("fsck", "--source", "live").code == 0, "the other source is not affected"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_bad_usage_exits_with_2(run: Run, filled: list[int], config: Path) -> None:
    wrong = run("fsck", "--source", "strip")
    assert wrong.code == 2 and "there is no event of source strip; sources with events: live, stripe" in wrong.error
    assert run("fsck", "--since", "yesterday-ish").code == 2
    config.write_text(config.read_text().replace("inbox.db", "other.db"))
    assert run("fsck").code == 2
