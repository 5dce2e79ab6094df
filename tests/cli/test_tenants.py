"""`oncehook tenants`: its messages, its JSON, its exit codes, and no secret in any of them."""

from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.managed import FIRST, KEY, SECOND


@pytest.fixture(autouse=True)
def tenants(in_folder: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration with a source that has managed tenants, and a key."""
    monkeypatch.setenv("ONCEHOOK_KEYS", KEY)
    lines = [f'database = "{database}"', "[sources.stripe]", "tenants = true", "[sources.github]", 'secrets = ["s"]']
    (in_folder / "oncehook.toml").write_text("\n".join(lines))


def test_tenant_is_added_rotated_listed_and_removed(run: Run) -> None:
    added = run("tenants", "add", "stripe", "acme", "--secret", FIRST)
    assert (added.code, added.error) == (0, "") and added.out.startswith("stripe/acme is added; every process")
    assert run("tenants", "rotate", "stripe", "acme", "--secret", SECOND).code == 0
    (row,) = run("tenants", "list", "stripe", "--json").lines
    assert row["tenant"] == "acme" and [secret["ends_at"] is None for secret in row["secrets"]] == [True, False]
    listed = run("tenants", "list", "stripe").out
    assert row["secrets"][0]["fingerprint"] in listed and "whsec" not in listed + added.out
    assert run("tenants", "rotate", "stripe", "acme", "--finish").out.startswith("stripe/acme has only its newest")
    removed = run("tenants", "remove", "stripe", "acme", "--json")
    assert removed.lines == [{"source": "stripe", "tenant": "acme", "result": "is removed"}]
    empty = run("tenants", "list", "stripe")
    assert (empty.code, empty.out) == (1, "") and "oncehook tenants add" in empty.error


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_list_is_searched_and_limited(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncehook.cli.tenants.PAGE", 2)
    for name in ("b3", "a1", "b1", "b2", "B4", "b_"):
        run("tenants", "add", "stripe", name, "--secret", FIRST)

    def names(*options: str) -> list[str]:
        return [row["tenant"] for row in run("tenants", "list", "stripe", "--json", *options).lines]

    assert names() == ["B4", "a1", "b1", "b2", "b3", "b_"]
    assert names("--search", "b", "--limit", "3") == ["b1", "b2", "b3"]
    assert names("--search", "b_") == ["b_"], "the search is for a text, not for a pattern"
    assert run("tenants", "list", "stripe", "--search", "%").code == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "strpe", "acme", "--secret", "x"), "did you mean stripe"),
        (("add", "github", "acme", "--secret", "x"), "tenants = true"),
        (("add", "stripe", "a/b", "--secret", "x"), "up to 128 letters"),
        (("add", "stripe", "acme"), "needs a secret"),
        (("remove", "stripe", "acme"), "no managed tenant acme"),
        (("rotate", "stripe", "acme"), "--secret"),
        (("list", "strpe"), "did you mean stripe"),
    ],
)
def test_mistake_is_reported_in_a_sentence(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = run("tenants", *arguments)
    assert ran.code == 2 and message in ran.error, ran.error
