"""Replays and rehearsals in requests and responses."""

import msgspec

from oncehook.web.api.schemas.replays import Rehearsed, Replay, ReplaySelection, RunState
from oncehook.web.listing import EventFilterForm
from tests.support.api_schemas import assert_rejects, schema_of


def test_selection_has_every_field_of_the_filter() -> None:
    assert set(EventFilterForm.__struct_fields__) <= set(ReplaySelection.__struct_fields__)
    selection = msgspec.convert({"status": "failed"}, ReplaySelection)
    assert (selection.count, selection.rate, selection.dry_run) == (None, None, False)


def test_selection_rejects_unknown_fields_and_impossible_numbers() -> None:
    for value in ({"receipt": 1}, {"rate": 0}, {"count": -1}, {"status": "unhandled"}, {"error": "x" * 2001}):
        assert_rejects(ReplaySelection, value)


def test_run_is_running_done_or_stopped() -> None:
    run = {
        "run": "0" * 16, "actor": "me", "state": "running", "matched": 3, "looked_at": 0, "replayed": 0, "handled": 0,
        "failed": 0, "waiting": 3, "left": {}, "error": None, "started_at": None,
    }  # fmt: skip
    assert msgspec.to_builtins(msgspec.convert(run, RunState)) == run
    assert_rejects(RunState, {**run, "state": "paused"})


def test_replay_of_one_event_has_no_run() -> None:
    assert msgspec.to_builtins(Replay(1, 1, {})) == {"matched": 1, "replayed": 1, "left": {}, "run": None}
    assert set(schema_of(Rehearsed)["required"]) == set(Rehearsed.__struct_fields__)
