"""Forms: the same fields as Python's own parser finds, at a cost that does not depend on their content."""

import time
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.providers.form import MAX_FIELDS, read_fields, unescape

pieces = st.sampled_from(
    ["a", "=", "&", "+", "%41", "%3d", "%25", "%0A", "%C3%BC", "%FF", "ü", "\n", "\r", " ", "%", "%4", "%zz"]
)


@given(st.lists(pieces, max_size=12).map("".join))
def test_fields_agree_with_those_that_urllib_reads(text: str) -> None:
    try:
        expected = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="surrogateescape")
    except ValueError:
        expected = None
    try:
        found = read_fields(text.encode())
    except ValueError as error:
        assert expected is None or "hexadecimal" in str(error)  # urllib leaves a stray % unchanged
        return
    assert found == [tuple(part.encode("utf-8", "surrogateescape") for part in field) for field in expected or ()]


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), min_size=1, max_size=5))
def test_unescape_is_the_inverse_of_escaping(fields: list[tuple[bytes, bytes]]) -> None:
    assert read_fields(urlencode(fields).encode()) == fields


@pytest.mark.parametrize("text", [b"%", b"%4", b"%zz", b"%%41", b"a%=3D", b"%\n", b"%\r\n41", b"%41%"])
def test_percent_sign_without_two_digits_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        unescape(text)


def test_form_with_too_many_fields_is_an_error() -> None:
    assert len(read_fields(b"&".join([b"a=b"] * MAX_FIELDS))) == MAX_FIELDS
    with pytest.raises(ValueError, match="fields"):
        read_fields(b"&".join([b"a=b"] * (MAX_FIELDS + 1)))


def test_unescaped_characters_are_accepted_up_to_a_limit() -> None:
    assert unescape(b"%41" + b"=\r\n" * 1000) == b"A" + b"=\r\n" * 1000
    for sign in (b"=", b"\r", b"\n"):
        with pytest.raises(ValueError, match="unescaped"):
            unescape(b"%41" + sign * 1001)


def test_steps_of_unescape_do_not_grow_with_the_number_of_escapes() -> None:
    text, plain = b"%41" * 2_000_000, b"A" * 2_000_000
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert unescape(text) == plain
        took.append(time.thread_time() - began)
    assert min(took) < 0.2, "about 0.02 s are usual; urllib needs seconds"
