"""Effects in requests and responses."""

import msgspec

from oncehook.web.api.schemas.effects import Effect, Effects, EffectsQuery, ReplayedEffects, SelectedEffects
from tests.support.api_schemas import assert_rejects, schema_of


def test_empty_query_selects_the_newest_50_effects() -> None:
    assert msgspec.convert({}, EffectsQuery) == EffectsQuery(status="", limit=50, cursor="")


def test_query_rejects_unknown_states_ids_and_limits() -> None:
    for value in ({"status": "lost"}, {"receipt": "x"}, {"cursor": "x"}, {"limit": 501}, {"target": "x" * 501}):
        assert_rejects(EffectsQuery, value)


def test_selection_rejects_unknown_fields_and_negative_counts() -> None:
    assert msgspec.convert({"target": "mail", "count": 2}, SelectedEffects).dry_run is False
    assert_rejects(SelectedEffects, {"key": "x"})
    assert_rejects(SelectedEffects, {"count": -1})


def test_arguments_may_be_null_after_erasure_but_never_missing() -> None:
    assert "args" in schema_of(Effect)["required"]
    assert set(schema_of(Effects)["required"]) == {"effects", "next", "is_partial", "counts"}
    assert msgspec.convert({"replayed": 1, "left": 0}, ReplayedEffects) == ReplayedEffects(1, 0)
