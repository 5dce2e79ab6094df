"""Stored deliveries: each still verifies and is the same event. The files in tests/vectors never change."""

import json
from typing import Any

import pytest

from oncehook.config.configuration import read_source
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.definition import built_in_names
from oncehook.providers.source import Source
from tests.support import ROOT

FOLDER = ROOT / "tests" / "vectors"
CASES = [(file.stem, case) for file in sorted(FOLDER.glob("*.json")) for case in json.loads(file.read_text("utf-8"))]


def test_every_provider_has_vectors_and_every_vector_a_provider() -> None:
    """`python -m tests.vectors.make` writes the vectors of a new provider."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(built_in_names())


@pytest.mark.parametrize(
    ("provider", "case"), CASES, ids=lambda value: value["name"] if isinstance(value, dict) else ""
)
def test_stored_vector_verifies_and_has_the_same_facts(provider: str, case: dict[str, Any]) -> None:
    settings = {"provider": provider, "secrets": case["secrets"], **case["settings"]}
    source = Source("here", read_source("here", settings), max_body=2**20)
    delivery = Delivery.of(case["body"].encode(), case["headers"])
    assert source.verifier is not None
    if not case["valid"]:
        with pytest.raises(Rejected):
            source.verifier.verify(delivery, case["now"])
        return
    assert source.verifier.verify(delivery, case["now"]) == 0
    claims = source.read(delivery, source.parse(delivery))
    assert case["ids"] in (None, [claim.event_id for claim in claims])
    assert case["types"] == [claim.type for claim in claims]
    assert case["objects"] == [claim.object_id for claim in claims]
