"""The page about the proof and the badge of the README: programs write them from the results of a run."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from proof import page
from proof.badge import badge, message
from proof.parts import all_parts
from proof.promises import PROMISES
from tests.support import ROOT


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
    assert "**failed**" in text and "parts failed.**" in text and "No acked event was lost" not in text
    assert "1 of" in message(data) and "failed" in badge(data)


def test_badge_has_the_deliveries_and_is_an_image(data: dict[str, Any]) -> None:
    data["parts"] = {"deliveries": {"ok": True, "facts": [["deliveries", 100412], ["fault kinds", 26], ["lost", 0]]}}
    assert message(data) == "100,412 deliveries, 26 faults, 0 lost"
    picture = ET.fromstring(badge(data))
    assert picture.tag.endswith("svg") and "100,412 deliveries" in "".join(picture.itertext())


def test_result_with_a_path_of_the_machine_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps({"ok": True, "facts": [["file", f"{ROOT}/proof"]]}))
    with pytest.raises(ValueError, match="about this machine"):
        page.collect(tmp_path)
