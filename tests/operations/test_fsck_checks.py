"""The list of checks: each is evidence for a guarantee, and each guarantee has a check or a reason."""

from oncehook.operations.fsck_checks import CHECKS, INVARIANTS


def test_every_guarantee_has_a_check_or_a_reason() -> None:
    checked = {name for check in CHECKS for name in check.invariants}
    assert checked <= INVARIANTS.keys()
    unchecked = INVARIANTS.keys() - checked
    assert unchecked == {"I13", "I15", "I16"} and all(INVARIANTS[name].limit for name in unchecked)
    assert [name for name in INVARIANTS if name != "schema"] == [f"I{number}" for number in range(1, 19)]


def test_checks_of_one_table_follow_each_other() -> None:
    """Each group of them is read in one pass."""
    tables = [check.table for check in CHECKS]
    passes = [table for position, table in enumerate(tables) if position == 0 or tables[position - 1] != table]
    assert len(passes) == len(set(tables)) and len({check.name for check in CHECKS}) == len(CHECKS)
