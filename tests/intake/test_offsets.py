"""Which offsets of Kafka may be committed: only those before which everything is done."""

from hypothesis import given
from hypothesis import strategies as st

from oncehook.intake.offsets import Offsets


def delivered(*offsets: int) -> Offsets:
    made = Offsets()
    for offset in offsets:
        made.deliver(0, offset)
    return made


def test_offset_is_committed_only_when_everything_before_it_is_done() -> None:
    offsets = delivered(3, 4, 7)  # a compacted topic has gaps
    offsets.finish(0, 4)
    offsets.finish(0, 7)
    assert offsets.take_commits() == {} and offsets.in_flight == 1
    offsets.finish(0, 3)
    assert offsets.take_commits() == {0: 8} and offsets.in_flight == 0
    assert offsets.take_commits() == {}


def test_failed_commit_is_repeated_with_the_next_one() -> None:
    offsets = delivered(1, 2)
    offsets.finish(0, 1)
    commits = offsets.take_commits()
    offsets.restore_commits(commits)
    assert offsets.take_commits() == {0: 2}
    offsets.restore_commits(commits)
    offsets.finish(0, 2)
    assert offsets.take_commits() == {0: 3}


def test_failed_commit_does_not_replace_a_later_one() -> None:
    offsets = delivered(1, 2)
    offsets.finish(0, 1)
    commits = offsets.take_commits()
    offsets.finish(0, 2)  # while the commit runs
    offsets.restore_commits(commits)
    assert offsets.take_commits() == {0: 3}


def test_partition_that_was_taken_away_is_not_committed() -> None:
    offsets = delivered(1)
    offsets.deliver(1, 5)
    offsets.forget([0])
    offsets.finish(0, 1)
    offsets.restore_commits({0: 2})
    assert offsets.take_commits() == {}
    offsets.finish(1, 5)
    assert offsets.take_commits([1]) == {1: 6}


def test_rewound_messages_are_delivered_and_finished_again() -> None:
    offsets = delivered(1, 2, 3)
    offsets.finish(0, 3)
    assert offsets.rewind(0, 2) and not offsets.rewind(0, 9) and not offsets.rewind(4, 2)
    offsets.deliver(0, 2)
    offsets.finish(0, 1)
    assert offsets.take_commits() == {0: 2}
    offsets.finish(0, 2)
    assert offsets.take_commits() == {0: 3}


@given(st.permutations(range(8)), st.integers(0, 8))
def test_commit_is_never_after_a_message_that_is_not_done(order: list[int], count: int) -> None:
    offsets = delivered(*range(8))
    committed = 0
    for done, offset in enumerate(order[:count], 1):
        offsets.finish(0, offset)
        committed = offsets.take_commits().get(0, committed)
        assert set(range(committed)) <= set(order[:done])
        assert committed == 8 or committed not in order[:done]
