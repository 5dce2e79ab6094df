"""The page about the proof and the badge of the README: programs write them from the results of a run."""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proof import page
from proof.badge import badge, message
from proof.check import summary
from proof.deliveries.kinds import NAMES
from proof.deliveries.plan import make_plan
from proof.deliveries.result import result_of
from proof.deliveries.run import Options, Outcome
from proof.deliveries.senders import Answers
from proof.parts import all_parts
from proof.promises import PROMISES
from proof.simulate import Summary
from tests.support import ROOT, counts
from tests.support.crashes import AT_POINT


@pytest.fixture
def data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(page.DATA.read_text("utf-8"))
    return loaded


def test_page_and_badge_are_those_of_the_last_run(data: dict[str, Any]) -> None:
    assert page.PAGE.read_text("utf-8") == page.render(data), "run `make docs`"
    assert page.BADGE.read_text("utf-8") == badge(data), "run `make docs`"


def test_no_part_of_the_last_run_failed(data: dict[str, Any]) -> None:
    known = {part.name for part in all_parts()}
    assert data["parts"].keys() <= known
    assert [name for name, result in data["parts"].items() if not result["ok"]] == []


def test_page_has_every_part_invariant_and_promise(data: dict[str, Any]) -> None:
    text = page.render(data)
    assert [part.name for part in all_parts() if f"### {part.title}\n" not in text] == []
    assert [name for name in page.SHOWN if f"| {name} |" not in text] == []
    assert {name for part in all_parts() for name in part.invariants} == page.SHOWN.keys()
    readme = " ".join((ROOT / "README.md").read_text("utf-8").replace("*", "").lower().split())
    assert [promise.text for promise in PROMISES if promise.text.lower().rstrip(".") not in readme] == []
    assert {name for promise in PROMISES for name in promise.evidence} <= {part.name for part in all_parts()}


def test_failed_part_shows_on_the_page_and_the_badge(data: dict[str, Any]) -> None:
    data["parts"]["races"] = {"ok": False, "seconds": 3.0, "facts": [["tests passed", 1]]}
    text = page.render(data)
    assert "**failed**" in text and "parts failed.**" in text and "No acked\nevent was lost" not in text
    assert "1 of" in message(data) and "failed" in badge(data)


def test_page_says_that_parts_were_not_run(data: dict[str, Any]) -> None:
    data["parts"].pop("races", None)
    text = page.render(data)
    assert "The parts\nthat ran lost no acked event" in text and "No acked\nevent was lost" not in text


def test_folder_without_results_leaves_the_page_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page.PAGE.read_bytes(), page.DATA.read_bytes()
    monkeypatch.setattr("sys.argv", ["page", "--from", str(tmp_path)])
    with pytest.raises(SystemExit):
        page.main()
    assert "has no result of a part" in capsys.readouterr().err
    assert (page.PAGE.read_bytes(), page.DATA.read_bytes()) == before


def test_evidence_of_a_promise_is_something_that_its_part_counts() -> None:
    plan, answers = make_plan(1, 100), Answers()

    def delivered(kills: int | None) -> set[str]:
        options = Options("postgres", 100, 1, 100.0, NAMES, kills)
        outcome = Outcome(options, plan, answers, Counter(F8=1), Counter(), 0, [], 1.0)
        return {label for label, _ in result_of(outcome)["facts"]}

    in_tests = {value for value in vars(counts).values() if isinstance(value, str)} | set(AT_POINT.values())
    counted = {
        "deliveries": delivered(None),
        "database-kills": delivered(20),
        "simulation": {label for label, _ in Summary().as_json()["facts"]},
        "model": {label for label, _ in summary([], 1.0)["facts"]},
    }
    missing = [
        (part, label)
        for promise in PROMISES
        for part, labels in promise.evidence.items()
        for label in labels
        if label not in counted.get(part, in_tests)
    ]
    assert missing == []


def test_badge_has_the_deliveries_and_is_an_image(data: dict[str, Any]) -> None:
    data["parts"] = {"deliveries": {"ok": True, "facts": [["deliveries", 100412], ["kinds of faults", 23]]}}
    assert message(data) == "100,412 deliveries, 23 kinds of faults, 0 lost"
    picture = ET.fromstring(badge(data))
    assert picture.tag.endswith("svg") and "100,412 deliveries" in "".join(picture.itertext())


def test_result_with_a_path_of_the_machine_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps({"ok": True, "facts": [["file", f"{ROOT}/proof"]]}))
    with pytest.raises(ValueError, match="about this machine"):
        page.collect(tmp_path)
