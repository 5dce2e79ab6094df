"""Parses bodies, and reads the facts of an event (id, type, object, time) where a provider's definition says they are.

A *locator* says where one fact is: a dotted path in the body (`data.object.id`), `header:NAME`, `token:NAME` (a JWT in
that header, without its signature, which has many spellings), `literal:TEXT`, or `key:A,B` (the first of these keys
that the body has). Senders without an id use `content:sha256` (the hash of the event) or `new:delivery` (a new id for
each delivery). A path that leads into a string parses that string as JSON (SNS wraps SES like this).

A *template* composes several locators: `{RecordType}|{MessageID}`. `{a|b}` takes the first that is present. An
*expression* is one template or a list of templates. The first template whose parts are all present is used.

If a JSON object has a key twice, the last value wins, as in Python, JavaScript and PostgreSQL. `verify` follows the
same rule when it reads an unverified body, so verification and reading always see the same values.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

import msgspec

from oncehook.providers.form import read_fields

Headers = Mapping[bytes, bytes]
Find = Callable[[Any, Headers], str | None]

MAX_BYTES = 255
"""The longest text in an index. A longer text is indexed by its hash; the body still holds it."""


CONTENT, NEW = b":content", b":new"
"""The names of `content:sha256` and `new:delivery` among the headers. No real header name begins with a colon."""
_GENERATED = {"content:sha256": CONTENT, "new:delivery": NEW}


class NotReadable(ValueError):
    """The body is not in its declared format."""


class TooDeep(ValueError):
    """The body is nested deeper than the parsers allow. It is stored, but no fact is read from it."""


# -- bodies ---------------------------------------------------------------------------------------------------------


def parse(body: bytes, *, form: bool = False) -> Any:
    """The body as plain data. For any input, it raises nothing but NotReadable and TooDeep."""
    return _parse_form(body) if form else _parse_json(body)


def _parse_json(body: bytes | str) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise TooDeep("nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError):
        return _parse_odd_json(body)


def _parse_odd_json(body: bytes | str) -> Any:
    """Parse well-formed JSON that msgspec does not support: lone surrogates and huge numbers."""
    try:
        text = body.decode("utf-8") if isinstance(body, bytes) else body
        return json.loads(text, parse_int=_integer, parse_constant=_reject_constant)
    except RecursionError:
        raise TooDeep("nested too deeply") from None
    except ValueError as error:
        raise NotReadable(f"not JSON: {type(error).__name__}") from None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= 4000 else digits


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _parse_form(body: bytes) -> dict[str, str]:
    """The fields of a form. The last value of a repeated field wins. A path can lead into a field that holds JSON."""
    try:
        fields = read_fields(body)
    except ValueError as error:
        raise NotReadable(f"not a form: {type(error).__name__}") from None
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields}


# An unterminated string is one token to the end. Otherwise the search would start again at every quote in it.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{},]', re.DOTALL)


def split(body: bytes, path: str) -> list[bytes]:
    """The exact bytes of each element of the array at `path` ("*" is the body itself).

    Raises NotReadable if there is no array. A broken element is still an element: it becomes a failed receipt and does
    not affect the others.
    """
    raw = body if path == "*" else _raw_at(body, path.split("."))
    try:
        return [bytes(part) for part in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return _split_by_brackets(raw)


def _raw_at(body: bytes, steps: Sequence[str]) -> bytes:
    raw = body
    for step in steps:
        try:
            raw = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[step])
        except (msgspec.MsgspecError, RecursionError, UnicodeError, KeyError):
            raise NotReadable(f"no array at {'.'.join(steps)}") from None
    return raw


def _split_by_brackets(raw: bytes) -> list[bytes]:
    """Split an array by counting brackets, for arrays with an element that no parser accepts."""
    text = raw.strip(b" \t\r\n")
    if not (text.startswith(b"[") and text.endswith(b"]")):
        raise NotReadable("not an array")
    parts, depth, start = [], 0, 1
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in (b"[", b"{"):
            depth += 1
        elif sign in (b"]", b"}"):
            depth -= 1
            if depth == 0 and token.end() != len(text):
                raise NotReadable("more than one array")
        elif depth == 1 and sign == b",":
            parts.append(text[start : token.start()].strip(b" \t\r\n"))
            start = token.end()
    if depth != 0:
        raise NotReadable("the array does not end")
    parts.append(text[start:-1].strip(b" \t\r\n"))
    if not all(parts):
        raise NotReadable("an element is missing")
    return parts


# -- locators -------------------------------------------------------------------------------------------------------


def look_up(value: Any, steps: Sequence[str], default: Any = None) -> Any:
    """The value at a path, or `default`. A string on the path is parsed as JSON."""
    for step in steps:
        if isinstance(value, str):
            value = _read_inner(value)
        if isinstance(value, dict):
            value = value.get(step, default)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return default
    return value


def _read_inner(text: str) -> Any:
    try:
        return _parse_json(text)
    except (NotReadable, TooDeep):
        return None


def compile_expression(expression: str | Sequence[str], *, names: bool = True) -> Find:
    """Compile an expression into a function that finds its value. Raises ValueError if it is not well-formed.

    With `names`, the value is a name, so only strings and whole numbers are accepted, not `true` or 1.5. A time may be
    any number.
    """
    finders = [_compile_template(template, names) for template in templates_of(expression)]
    if not finders:
        raise ValueError("an expression is empty")
    if len(finders) == 1:
        return finders[0]

    def first(body: Any, headers: Headers) -> str | None:
        for find in finders:
            value = find(body, headers)
            if value is not None:
                return value
        return None

    return first


def compile_key(expression: str | Sequence[str]) -> Find:
    """Compile the expression of an id, and reject one that could give two events the same id.

    For example, `{a}-{b}` would compose both (x-y, z) and (x, y-z) to x-y-z.
    """
    for template in templates_of(expression):
        if template.startswith("literal:") or ("{" in template and not _PLACEHOLDER.search(template)):
            raise ValueError(f"{template!r} would be the id of every event: say where the id is")
        between = _PLACEHOLDER.split(template)[2:-1:2]
        if any("|" not in text for text in between):
            raise ValueError(f"{template!r} composes an id: put | between its parts")
    return compile_expression(expression)


def headers_of(expression: str | Sequence[str]) -> set[bytes]:
    """The names of the headers that an expression may read."""
    names = re.findall(r"(?:header|token):([^{}|\n]+)", "\n".join(templates_of(expression)))
    return {name.strip().lower().encode("latin-1") for name in names}


def generated_facts(expression: str | Sequence[str]) -> set[bytes]:
    """The generated facts (CONTENT, NEW) that an expression may read."""
    text = "\n".join(templates_of(expression))
    return {key for name, key in _GENERATED.items() if name in text}


def templates_of(expression: str | Sequence[str]) -> tuple[str, ...]:
    return (expression,) if isinstance(expression, str) else tuple(expression)


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def _compile_template(template: str, names: bool) -> Find:
    if template.startswith("literal:"):
        constant = template[len("literal:") :]
        return lambda body, headers: constant
    if "{" not in template and "}" not in template:
        return _compile_locator(template, names)
    pieces = _PLACEHOLDER.split(template)  # text, placeholder, text, placeholder, … text
    if any("{" in piece or "}" in piece for piece in pieces):
        raise ValueError(f"{template!r} has an unmatched brace")
    lone = len(pieces) == 3 and not pieces[0] and not pieces[2]
    finders = [_compile_choice(piece, names and lone) if i % 2 else piece for i, piece in enumerate(pieces)]
    return finders[1] if lone else _compose(finders)  # type: ignore[return-value]  # odd pieces are finders


def _compose(pieces: Sequence[str | Find]) -> Find:
    """Join the values. `%` and `|` in a value are escaped, so different values never compose to the same text."""

    def composed(body: Any, headers: Headers) -> str | None:
        parts = []
        for piece in pieces:
            if isinstance(piece, str):
                parts.append(piece)
                continue
            value = piece(body, headers)
            if value is None:
                return None
            parts.append(value.replace("%", "%25").replace("|", "%7C"))
        return "".join(parts)

    return composed


def _compile_choice(choice: str, names: bool) -> Find:
    finders = [_compile_locator(locator, names) for locator in choice.split("|")]
    if len(finders) == 1:
        return finders[0]
    return lambda body, headers: next((value for find in finders if (value := find(body, headers)) is not None), None)


def _compile_locator(locator: str, names: bool) -> Find:
    name = locator.strip()
    if not name:
        raise ValueError("a locator is empty")
    if name.startswith("header:") or name in _GENERATED:
        key = _GENERATED.get(name) or name[len("header:") :].strip().lower().encode("latin-1")
        return lambda body, headers: _header_text(headers.get(key))
    if name.startswith("token:"):
        token = name[len("token:") :].strip().lower().encode("latin-1")
        return lambda body, headers: _header_text(headers.get(token, b"").rpartition(b".")[0])
    if name.startswith("key:"):
        keys = [key.strip() for key in name[len("key:") :].split(",")]
        return lambda body, headers: next((key for key in keys if isinstance(body, dict) and key in body), None)
    steps = tuple(name.split("."))
    if not all(steps):
        raise ValueError(f"{name!r} has an empty step")

    def find(body: Any, headers: Headers) -> str | None:
        value = body
        for step in steps:  # nearly always a dict in a dict; `look_up` handles the rest
            value = value.get(step) if type(value) is dict else look_up(value, (step,))
        return _scalar_text(value, names)

    return find


def _header_text(value: bytes | None) -> str | None:
    return (value.decode("latin-1").strip() or None) if value is not None else None


def _scalar_text(value: Any, names: bool) -> str | None:
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, bool):
        return None if names else str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and not names and isfinite(value):
        return repr(value)
    return None


# -- values ---------------------------------------------------------------------------------------------------------


def is_storable(text: str) -> bool:
    """Whether every database can store a text unchanged: PostgreSQL stores neither NUL nor lone surrogates."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def index_text(text: str | None) -> str | None:
    """The text if an index can hold it (at most 255 bytes, no NUL, no lone surrogate), else its hash."""
    if text is None or (text.isascii() and len(text) <= MAX_BYTES and "\x00" not in text):
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_BYTES or not is_storable(text):
        return "sha256:" + hashlib.sha256(encoded).hexdigest()
    return text


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(?:[.,](\d{1,9})\d*)?\s*(Z|z|[+-]\d{2}:?\d{2})?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,14}(?:\.\d{1,9})?", re.ASCII)


def parse_time(text: str | None) -> datetime | None:
    """Parse a time: Unix seconds or milliseconds, or ISO 8601 with any fraction and offset.

    Returns None for other texts: an event is accepted even if its time cannot be parsed.
    """
    if text is None:
        return None
    try:
        if text.isascii() and text.isdigit() and len(text) <= 10:
            return datetime.fromtimestamp(int(text), UTC)
        if _NUMBER.fullmatch(text):
            number = float(text)
            return _EPOCH + timedelta(seconds=number / 1000 if number >= 1e11 else number)
        match = _MOMENT.fullmatch(text.strip())
        if not match:
            return None
        day, clock, fraction, offset = match.groups()
        offset = "+00:00" if offset in (None, "Z", "z") else offset
        return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def iso_time(seconds: float) -> str:
    """A Unix time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def fingerprint(body: bytes, parsed: Any, volatile: Sequence[tuple[str, ...]]) -> bytes:
    """SHA-256 that detects a different body under the same id. It leaves out fields that change between attempts."""
    if volatile and isinstance(parsed, dict):
        try:
            body = msgspec.json.encode(_without(parsed, volatile), order="sorted")
        except (ValueError, OverflowError, RecursionError):
            pass  # msgspec cannot encode some values that JSON allows: then the original bytes are hashed
    return hashlib.sha256(body).digest()


def _without(parsed: dict[str, Any], volatile: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    copied = dict(parsed)
    for first, *rest in volatile:
        inner = copied.get(first)
        if not rest:
            copied.pop(first, None)
        elif isinstance(inner, dict):
            copied[first] = _without(inner, [tuple(rest)])
    return copied
