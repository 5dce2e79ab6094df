"""Templates of signed messages, and reading unverified bodies."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.model.delivery import Delivery
from oncehook.providers.expressions import look_up, parse
from oncehook.providers.form import CONTENT_TYPE
from oncehook.providers.template import Body, Template, compile_paths


def body(content: bytes, *, form: bool = False) -> Body:
    return Body(Delivery(content), lambda headers: form)


def fill(template: str, delivery: Delivery, timestamp: bytes | None = b"12") -> bytes | None:
    return Template(template).fill(delivery, Body(delivery, lambda headers: False), timestamp)


DELIVERY = Delivery(b'{"a":{"b":"c"},"n":7}', [(b"x-id", b"i\xff"), (b"x-empty", b"")], method="PUT")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{body}", DELIVERY.body),
        ("{timestamp}.{body}", b"12." + DELIVERY.body),
        ("v0:{timestamp}:{body}", b"v0:12:" + DELIVERY.body),
        ("{timestamp}{body}", b"12" + DELIVERY.body),
        ("{timestamp}.{body}!", b"12." + DELIVERY.body + b"!"),
        ("{body}{timestamp}", DELIVERY.body + b"12"),
        ("<{body}>", b"<" + DELIVERY.body + b">"),
        ("{header:X-Id}.{timestamp}.{body}", b"i\xff.12." + DELIVERY.body),
        ("{header:X-Empty}|{method}", b"|PUT"),
        ("{body:a.b}{body:n}", b"c7"),
        ("{body:missing|a.b}", b"c"),
        ("only text", b"only text"),
        ("{header:X-Missing}{body}", None),
        ("{body:a}{body}", None),
    ],
)
def test_template_is_filled_from_the_request(template: str, message: bytes | None) -> None:
    assert fill(template, DELIVERY) == message


@pytest.mark.parametrize("template", ["{timestamp}", "{timestamp}.{body}", "{body}{timestamp}"])
def test_template_without_its_timestamp_is_not_filled(template: str) -> None:
    assert fill(template, DELIVERY, None) is None


@pytest.mark.parametrize(
    "template", ["{bod}", "{timestmp}.{body}", "{body", "body}", "{{body}}", "{}", "{header}", "{Body}"]
)
def test_template_with_an_unknown_placeholder_is_an_error(template: str) -> None:
    with pytest.raises(ValueError, match=r"is not a known placeholder|unmatched brace"):
        Template(template)


def test_headers_of_a_template_are_listed() -> None:
    assert Template("{header:X-A}{header: x-b }{body}").headers == {b"x-a", b"x-b"}


# -- unverified bodies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "path", "found"),
    [
        (b'{"a":"x"}', "a", b"x"), (b'{"a":{"b":"x"}}', "a.b", b"x"), (b'{"a":1}', "a", b"1"),
        (b'{"a":"x"}', "b|a", b"x"),
        (b'{"a":null}', "a", None), (b'{"a":true}', "a", None), (b'{"a":1.5}', "a", None), (b'{"a":[]}', "a", None),
        (b'{"a":{}}', "a", None), (b'{"a":"{\\"b\\":1}"}', "a.b", None), (b'["x"]', "0", None), (b'"x"', "a", None),
        (b"", "a", None), (b"\xff", "a", None), (b'{"a":"\xff"}', "a", None), (b'{"a":"x"', "a", None),
        (b"[" * 100_000, "a", None),
        (b'{"a":"x","b":' + b"[" * 100_000, "a", None), (b'{"a":"x","junk":"\xff"}', "a", b"x"),
        (b'{"a":"x","n":1e999}', "a", b"x"),
        (b'{"a":"\\ud800"}', "a", None), (b'{"a":"first","a":"last"}', "a", b"last"),
        (b'{"a":"\xc3\xbc"}', "a", "ü".encode()),
    ],
)  # fmt: skip
def test_single_field_is_read_and_the_rest_is_skipped(content: bytes, path: str, found: bytes | None) -> None:
    assert body(content).at(compile_paths(path)) == found


def test_form_is_read_only_if_the_provider_sends_forms() -> None:
    content = b"a=x&b=y"
    assert body(content, form=True).at(compile_paths("a")) == b"x"
    assert body(content).at(compile_paths("a")) is None
    assert body(b'{"a":"x"}', form=True).at(compile_paths("a")) is None


def test_texts_are_none_if_one_field_is_not_a_string() -> None:
    assert body(b'{"a":"x","b":null,"c":1}').texts(("a", "b", "missing")) == {"a": "x"}
    assert body(b'{"a":"x","c":1}').texts(("a", "c")) is None
    assert body(b"[]").texts(("a",)) is None


keys = st.sampled_from(["a", "b", "a.b", "\\u0061", ""])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(pairs=st.lists(st.tuples(st.sampled_from(['"a"', '"b"', '"\\u0061"']), values), max_size=5))
def test_unverified_reader_and_parser_find_the_same_values(pairs: list[tuple[str, object]]) -> None:
    """Also with repeated keys: if the two differed, a signature could be bypassed."""
    content = ("{" + ",".join(f"{key}:{json.dumps(value)}" for key, value in pairs) + "}").encode()
    parsed = parse(content)
    for path in ("a", "b", "a.b", "a.a"):
        found = body(content).at(compile_paths(path))
        if found is not None:
            assert str(look_up(parsed, path.split("."))).encode("utf-8", "surrogatepass") == found


HOSTILE = {
    "numbers": b'{"signature":[' + b"1," * 500_000 + b"1]}",
    "odd numbers": b'{"signature":["\\ud800",' + b"1," * 500_000 + b"1]}",
    "objects": b'{"a":[' + b"{}," * 340_000 + b"1]}",
    "keys": b"{" + b",".join(b'"%d":1' % i for i in range(80_000)) + b"}",
    "no end": b'{"a":"' + b'\\"' * 500_000,
    "nest": b'{"signature":' * 70_000,
    "escapes": b'{"a":"' + b"\\u0041" * 170_000 + b'"}',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_megabyte_costs_little_before_it_is_rejected(kind: str) -> None:
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert body(HOSTILE[kind]).at(compile_paths("signature.signature|token")) is None
        took.append(time.perf_counter() - began)
    assert min(took) < 0.1


def test_form_with_too_many_fields_is_not_decoded() -> None:
    delivery = Delivery(b"a=b&" * 250_000, [(b"content-type", CONTENT_TYPE.encode())])
    began = time.perf_counter()
    assert Body(delivery, lambda headers: True).at(compile_paths("a")) is None
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(
    ("body", "canonical"),
    [
        (b"b=2&a=1", b"a1b2"),
        (b"a=2&a=1&a=2", b"a1a2"),
        (b"a=", b"a"),
        (b"a=%2B+x", b"a+ x"),
        ("a=Grüße".encode(), "aGrüße".encode()),
        (b"", None),
        (b"&", None),
        (b"a", None),
        (b"\xff=1", None),
        (b"&".join(b"a%d=1" % number for number in range(1001)), None),
    ],
)
def test_form_is_signed_sorted_and_without_repetitions(body: bytes, canonical: bytes | None) -> None:
    assert Body(Delivery(body), lambda headers: True).form() == canonical
