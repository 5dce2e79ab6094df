"""Parsing bodies and finding facts in them. For any input, only the two errors of the module are raised."""

import hashlib
import json
import time
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.providers.expressions import (
    NotReadable,
    TooDeep,
    compile_expression,
    compile_key,
    fingerprint,
    headers_of,
    index_text,
    look_up,
    parse,
    parse_time,
    split,
)

DEEP = b"[" * 100_000 + b"]" * 100_000


def find(expression: str | list[str], body: object, headers: dict[bytes, bytes] | None = None) -> str | None:
    return compile_expression(expression)(body, headers or {})


# -- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"id":"a"}', {"id": "a"}), (b" null ", None), (b"true", True), (b"1", 1), (b'"a"', "a"), (b"[]", []),
        (b'"\\u0000"', "\x00"), (b'"\\ud800"', "\ud800"), (b'{"a":"\\ud83d x"}', {"a": "\ud83d x"}),
        (b"1" * 5000, "1" * 5000), (b"1" * 4300, int("1" * 4300)), (b"[1e400]", [float("inf")]), (b"-0", 0),
        (b'{"a":1,"a":2}', {"a": 2}),
    ],
)  # fmt: skip
def test_unusual_but_valid_json_is_parsed(body: bytes, value: object) -> None:
    assert parse(body) == value


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b'{"a":1,}', b"[1", b"NaN", b"[Infinity]", b"{'a':1}", b'"\xff"', b'"\xed\xa0\x80"',
     b"\xef\xbb\xbf{}", b'{"a":1}{', b'"\x00"', b"\xff\xfe{\x00}\x00", b'["\\ud800", nan]'],
)  # fmt: skip
def test_body_that_is_not_json_raises_not_readable(body: bytes) -> None:
    with pytest.raises(NotReadable, match="not JSON"):
        parse(body)


@pytest.mark.parametrize("body", [DEEP, b'{"a":' * 100_000, b'["\\ud800",' + DEEP + b"]"])
def test_body_that_is_nested_too_deep_raises_too_deep(body: bytes) -> None:
    with pytest.raises(TooDeep):
        parse(body)


def test_last_value_of_a_repeated_form_field_wins() -> None:
    assert parse(b"a=1&b=%7B%7D&a=2&c=", form=True) == {"a": "2", "b": "{}", "c": ""}
    assert look_up(parse(b"payload=%7B%22id%22%3A7%7D", form=True), ["payload", "id"]) == 7


@pytest.mark.parametrize("body", [b"&", b"a", b"a=1&b", b"\xff=1", b"&".join([b"a=1"] * 1001)])
def test_body_that_is_not_a_form_raises_not_readable(body: bytes) -> None:
    with pytest.raises(NotReadable, match="not a form"):
        parse(body, form=True)


# -- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        (b"[]", []), (b" [ ] \r\n", []), (b'[{"a":1}]\r\n', [b'{"a":1}']),
        (b'[ {"a" : 1} ,\r\n{"b":[1, 2]} ]', [b'{"a" : 1}', b'{"b":[1, 2]}']),
        (b'[1,"a,]",null,[[]],true]', [b"1", b'"a,]"', b"null", b"[[]]", b"true"]),
        (b'[{"a":"\\"],["},{"b":"\\\\"}]', [b'{"a":"\\"],["}', b'{"b":"\\\\"}']),
        (b'[{"a":"\xff"},{"b":1}]', [b'{"a":"\xff"}', b'{"b":1}']),
        (b'[{"a":"\\ud800"},' + b"1" * 5000 + b"]", [b'{"a":"\\ud800"}', b"1" * 5000]),
        (b'[{"a":1},' + DEEP + b',{"b":"[,"}]', [b'{"a":1}', DEEP, b'{"b":"[,"}']),
        (b'[{"a":1},nonsense, {"b":2}]', [b'{"a":1}', b"nonsense", b'{"b":2}']),
        (b'[{"a":1},{"a":1}]', [b'{"a":1}', b'{"a":1}']),
    ],
)  # fmt: skip
def test_split_returns_the_exact_bytes_of_each_element_even_beside_a_broken_one(
    body: bytes, elements: list[bytes]
) -> None:
    assert split(body, "*") == elements


def test_array_inside_the_body_is_split_by_its_path() -> None:
    assert split(b'{"x":0,"data":{"events":[{"a": 1}, 2]}}', "data.events") == [b'{"a": 1}', b"2"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{}", "*"), (b'"a"', "*"), (b"", "*"), (b"[", "*"), (b"[1", "*"), (b"]", "*"), (b"[1]]", "*"),
        (b"[1][2]", "*"),
        (b"[1,]", "*"), (b"[,1]", "*"), (b'["]', "*"), (b'["\\"]', "*"), (b"[nonsense", "*"), (b"[{]}", "*"),
        (b"[x],[y]", "*"),
        (b'{"a":1}', "b"), (b'{"a":1}', "a"), (b"[]", "a"), (b'{"a":{"b":1}}', "a.c"), (b'{"\xff":1}', "a"),
        (b"{", "a"),
    ],
)  # fmt: skip
def test_split_without_an_array_raises_not_readable(body: bytes, path: str) -> None:
    with pytest.raises(NotReadable):
        split(body, path)


@given(st.lists(st.recursive(st.text() | st.integers(), st.lists, max_leaves=5), max_size=6))
def test_joined_elements_are_the_array_again(values: list[object]) -> None:
    elements = split(json.dumps(values, indent=1).encode(), "*")
    assert [json.loads(element) for element in elements] == values


def test_unterminated_string_is_read_in_one_pass() -> None:
    """If the search started again at each escaped quote, a megabyte would take minutes."""
    began = time.perf_counter()
    with pytest.raises(NotReadable):
        split(b'[nonsense,"' + b'\\"' * 500_000 + b"]", "*")
    assert time.perf_counter() - began < 2


# -- locators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("id", "a"), ("data.object.id", "7"), ("data.list.1.id", "second"), ("data.list.9.id", None), ("missing", None),
        ("inner.type", "Bounce"), ("odd.type", "Bounce"), ("broken.type", None), ("blank", None), ("flag", None),
        ("fraction", None), ("data", None), ("header:X-Id", "h"), ("header:x-missing", None), ("header:X-Blank", None),
        ("literal:constant", "constant"), ("{missing|id}", "a"), ("{missing|header:X-Id}", "h"),
        ("{id}|{flag}|{fraction}", "a|true|1.5"), ("{id}|{missing}", None), ("{id}|{blank}", None),
        (["missing", "id"], "a"), (["{id}.{missing}", "{id}.{flag}"], "a.true"), (["missing", "blank"], None),
        ("id.deeper", None), ("data.list.x", None), ("infinite", None), ("{id}|{infinite}", None),
    ],
)  # fmt: skip
def test_expression_finds_the_first_value_that_is_present(expression: str | list[str], found: str | None) -> None:
    body = {
        "id": "a", "blank": " ", "flag": True, "fraction": 1.5, "infinite": float("inf"),
        "data": {"object": {"id": 7}, "list": [{}, {"id": "second"}]},
        "inner": '{"type":"Bounce"}', "odd": '{"type":"Bounce","subject":"cut \\ud83d","n":1e999}', "broken": "{",
    }  # fmt: skip
    assert find(expression, body, {b"x-id": b" h ", b"x-blank": b"  "}) == found


def test_time_may_be_a_fraction_but_an_id_may_not() -> None:
    body = {"timestamp": 1534108637.153125}
    assert compile_expression("timestamp", names=False)(body, {}) == "1534108637.153125"
    assert compile_expression("timestamp")(body, {}) is None


def test_different_values_never_compose_to_the_same_id() -> None:
    find_id = compile_key("{a}|{b}")
    parts = ["x", "y", "x|y", "|", "%7C", "%", "x%7Cy", "y|", "|x", "%25"]
    keys = {find_id({"a": a, "b": b}, {}) for a in parts for b in parts}
    assert len(keys) == len(parts) ** 2


@pytest.mark.parametrize("template", ["{a}{b}", "{a}-{b}", "{a}.{b}|{c}"])
def test_composed_id_without_a_bar_between_its_parts_is_an_error(template: str) -> None:
    with pytest.raises(ValueError, match=r"put \| between its parts"):
        compile_key(["id", template])


@pytest.mark.parametrize("expression", ["", " ", "a..b", ".", "{", "a}", "{}", "{a", "{a|}", "{a}{{b}}", [], [""]])
def test_malformed_expression_is_an_error(expression: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_expression(expression)


def test_headers_of_an_expression_are_listed() -> None:
    assert headers_of(["{header:X-A|header: X-B }.{action}", "header:X-C", "id"]) == {b"x-a", b"x-b", b"x-c"}


@pytest.mark.parametrize("body", [None, True, 1, 1.5, "text", '"', [], [[]], {}])
def test_body_that_is_not_an_object_has_no_facts(body: object) -> None:
    assert find("id", body) is None


# -- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "a" * 255, "ü" * 127, "a b ", "\n", "é", "e\u0301", "A"])
def test_short_text_is_indexed_unchanged(text: str) -> None:
    assert index_text(text) == text


@pytest.mark.parametrize("text", ["a" * 256, "ü" * 128, "\x00", "a\x00b", "\ud800", "a" * 300 + "\udfff", "🎉" * 64])
def test_text_that_an_index_cannot_hold_is_indexed_by_its_hash(text: str) -> None:
    assert index_text(text) == "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def test_missing_text_is_indexed_as_none() -> None:
    assert index_text(None) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "1970-01-01T00:00:00"), ("1534108637", "2018-08-12T21:17:17"),
        ("1534108637.153125", "2018-08-12T21:17:17.153125"),
        ("1534108637153", "2018-08-12T21:17:17.153"), ("99999999999", "5138-11-16T09:46:39"),
        ("2016-04-27T16:28:50.3963933-04:00", "2016-04-27T20:28:50.396393"),
        ("2023-03-29T18:00:27.877041743Z", "2023-03-29T18:00:27.877041"),
        ("2022-07-28T21:23:58.317Z", "2022-07-28T21:23:58.317"), ("2022-07-28 21:23:58", "2022-07-28T21:23:58"),
        (" 2022-07-28T21:23:58z ", "2022-07-28T21:23:58"), ("2022-07-28T21:23:58,5+0530", "2022-07-28T15:53:58.500"),
        ("2022-07-28T21:23:58.1234567890123+14:00", "2022-07-28T07:23:58.123456"),
        ("2022-07-28T21:23:58.5 +00:00", "2022-07-28T21:23:58.5"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00"), ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59"),
    ],
)  # fmt: skip
def test_time_is_parsed_in_the_formats_that_senders_use(text: str, expected: str) -> None:
    assert parse_time(text) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [None, "", " ", "-1", "+1", "1_0", "1e9", "nan", "١٢٣", "9" * 15, "0000-01-01T00:00:00Z", "2022-13-01T00:00:00Z",
     "2022-02-30T00:00:00Z", "2022-07-28T24:00:01Z", "2022-07-28T21:23:60Z", "2022-07-28T21:23:58+24:00",
     "2022-07-28T21:23:58123",
     "2022-07-28", "2022-07-28T21:23", "20220728T212358Z", "Fri, 1 Aug 2014 16:45:32 -04:00",
     "9999-12-31T23:59:59-01:00",
     "0001-01-01T00:00:00+01:00", "2022-07-28T21:23:58.Z", "٢٠٢٢-07-28T21:23:58Z", "1" * 100_000],
)  # fmt: skip
def test_text_that_is_not_a_time_is_none(text: str | None) -> None:
    assert parse_time(text) is None


# -- fingerprints ---------------------------------------------------------------------------------------------------

VOLATILE = [("attempt",), ("meta", "sent_at")]


def test_fingerprint_is_the_hash_of_the_body() -> None:
    assert fingerprint(b"x", None, []) == hashlib.sha256(b"x").digest()
    assert fingerprint(b'["a"]', ["a"], VOLATILE) == hashlib.sha256(b'["a"]').digest()


def test_fingerprint_ignores_volatile_fields_only() -> None:
    def of(**changes: object) -> bytes:
        parsed = {"id": 1, "attempt": 1, "meta": {"sent_at": 1, "kept": 1}, **changes}
        return fingerprint(msgspec.json.encode(parsed), parsed, VOLATILE)

    assert of() == of(attempt=2) == of(attempt=[3], meta={"kept": 1}) == of(meta={"kept": 1, "sent_at": {}})
    assert len({of(), of(id=2), of(meta={"kept": 2}), of(meta=None), of(added=1)}) == 5


@pytest.mark.parametrize(
    "body", [b'{"a":"\\ud800","attempt":1}', b'{"a":%s,"attempt":1}' % (b"9" * 400), b'{"a":1e999}']
)
def test_body_that_msgspec_cannot_encode_has_a_fingerprint(body: bytes) -> None:
    assert len(fingerprint(body, parse(body), VOLATILE)) == 32


@pytest.mark.parametrize("expression", ["literal:constant", ["id", "literal:constant"], "{}"])
def test_id_that_would_be_the_same_for_every_event_is_an_error(expression: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"would be the id of every event|a locator is empty"):
        compile_key(expression)
