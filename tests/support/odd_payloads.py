"""Payloads with arbitrary values, for Hypothesis."""

from typing import Any

from hypothesis import strategies as st

from tests.support.email_cases import PAYLOADS

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["a@b.c", "Bounce", "x\x00y", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def mangled(provider: str) -> st.SearchStrategy[Any]:
    """A payload of the provider with some fields replaced by arbitrary JSON."""
    payload = st.sampled_from([row[0] for row in PAYLOADS[provider]])

    def replace(value: Any, draw: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: replace(item, draw) if draw(st.integers(0, 5)) else draw(JSON) for name, item in value.items()
            }
        return value

    return st.composite(lambda draw: replace(draw(payload), draw))()
