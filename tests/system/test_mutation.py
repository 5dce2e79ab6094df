"""Mutation testing: the stored score covers every group, and the mutants change what the code does."""

import json
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from proof.mutation.operators import Mutations
from proof.mutation.patching import apply, find_functions

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "proof" / "mutation"
GROUPS = ["verify", "signatures", "claim", "process", "settle", "outbox", "relay"]
SCORE = json.loads((FOLDER / "score.json").read_text("utf-8"))
TARGETS = tomllib.loads((FOLDER / "targets.toml").read_text("utf-8"))

SOURCE = '''
LIMIT = 2

def grade(points, least=1):
    """A docstring."""
    if points > LIMIT and points >= least:
        return "high"
    try:
        return 10 // points
    except ZeroDivisionError:
        return None
'''


def test_score_covers_the_seven_groups_and_is_a_result_for_the_page() -> None:
    assert list(TARGETS) == list(SCORE["groups"]) == [name for name, _ in SCORE["facts"]] == GROUPS
    assert SCORE["ok"] is True and SCORE["seconds"] > 0
    assert {"title", "statement", "command"} <= SCORE.keys()


@pytest.mark.parametrize("name", GROUPS)
def test_score_of_a_group_is_at_least_85_percent_and_adds_up(name: str) -> None:
    group = SCORE["groups"][name]
    assert group["files"] == TARGETS[name]["files"]
    assert group["mutants"] == group["killed"] + group["equivalent"] + group["survived"]
    assert group["survived"] == len(group["survivors"])
    assert group["mutants"] >= 60
    assert group["score"] == pytest.approx(group["killed"] / (group["mutants"] - group["equivalent"]), abs=1e-4)
    assert group["score"] >= 0.85


def test_every_equivalent_mutant_has_a_reason_and_exists() -> None:
    equivalent: dict[str, str] = tomllib.loads((FOLDER / "equivalent.toml").read_text("utf-8"))
    files = {name.partition(" ")[0] for name in equivalent}
    assert files <= {name for target in TARGETS.values() for name in target["files"]}
    names = {mutant.name for name in files for mutant in Mutations(ROOT / "src" / "oncehook" / name, name)}
    assert [name for name, reason in equivalent.items() if name not in names or len(reason) < 20] == []


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "graded.py"
    path.write_text(SOURCE)
    module = ModuleType("graded")
    exec(compile(SOURCE, str(path), "exec"), vars(module))
    module.__file__ = str(path)
    return module


def test_each_kind_of_change_is_made(module: ModuleType) -> None:
    names = [mutant.name for mutant in Mutations(Path(str(module.__file__)), "graded.py")]
    assert names == [
        "graded.py LIMIT: LIMIT = 3",
        "graded.py grade: def grade(points, least=2):",
        "graded.py grade: if points > LIMIT or points >= least:",
        "graded.py grade: if points >= LIMIT and points >= least:",
        "graded.py grade: if points <= LIMIT and points >= least:",
        "graded.py grade: if points > LIMIT and points > least:",
        "graded.py grade: if points > LIMIT and points < least:",
        "graded.py grade: return ''",
        "graded.py grade: return None",
        "graded.py grade: return 10 * points",
        "graded.py grade: return 11 // points",
        "graded.py grade: except ZeroDivisionError: raise",
    ]


@pytest.mark.rest  # it looks at every object of the process, and that of make test has millions
def test_a_mutant_changes_live_functions(module: ModuleType) -> None:
    mutations = Mutations(Path(str(module.__file__)), "graded.py")
    functions = find_functions(str(mutations.path))
    kept = module.grade  # as a test that imported it by name
    mutants = {mutant.name.partition(": ")[2]: mutant for mutant in mutations}
    assert (kept(3), kept(2), kept(0)) == ("high", 5, None)
    apply(mutants["return 10 * points"], mutations.original, module, functions)
    assert kept(2) == 20
    apply(mutants["def grade(points, least=2):"], mutations.original, module, functions)
    assert kept.__defaults__ == (2,)
