"""The nearest name, in errors about names that do not exist."""

from oncehook.model.nearest import hint, nearest


def test_nearest_name_is_the_one_that_resembles_it_most() -> None:
    assert nearest("strpe", ["github", "stripe"]) == "stripe"
    assert nearest("zzz", ["github", "stripe"]) is None
    assert nearest("stripe", []) is None


def test_hint_names_the_nearest_or_lists_what_exists() -> None:
    assert hint("acne", ["acme", "shop"], "sources") == "did you mean acme?"
    assert hint("zzz", ["shop", "acme"], "sources") == "the sources are acme, shop"
    assert hint("zzz", [], "sources") == "there are no sources"


def test_hint_lists_a_bounded_number_of_names() -> None:
    assert len(hint("zzz", [f"source-{n:03}" for n in range(500)], "sources").split(",")) == 20
