"""The states of a receipt, and the transitions between them."""

from oncehook.model.states import TRANSITIONS, State

FINISHED = {State.PROCESSED, State.FAILED, State.IGNORED}


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == {None, *State}


def test_every_state_can_be_reached_from_a_new_receipt() -> None:
    reached: set[State] = set()
    waiting: list[State | None] = [None]
    while waiting:
        state = waiting.pop()
        for following in TRANSITIONS[state] - reached:
            reached.add(following)
            waiting.append(following)
    assert reached == set(State)


def test_only_a_replay_changes_a_finished_receipt_or_the_removal_of_its_consumer_a_dead_letter() -> None:
    following = dict.fromkeys(FINISHED, frozenset({State.RECEIVED})) | {
        State.FAILED: frozenset({State.RECEIVED, State.IGNORED})
    }
    assert {state: TRANSITIONS[state] for state in FINISHED} == following


def test_only_a_leased_receipt_becomes_processed() -> None:
    assert [state for state, following in TRANSITIONS.items() if State.PROCESSED in following] == [State.PROCESSING]


def test_state_is_the_text_of_the_status_column() -> None:
    assert State("processed") is State.PROCESSED and f"{State.FAILED}" == "failed"
