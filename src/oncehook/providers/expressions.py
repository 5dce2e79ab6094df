"""Facts out of a body: id, type, object and time, found where a provider's definition says they are.

A *locator* says where one fact is: a dotted path in the body (`data.object.id`), `header:NAME`, `token:NAME` (a JWT in
that header, without its signature, which has many spellings), `literal:TEXT`, `key:A,B` (the first of these names that
the body has), or, for senders without an id, `content:sha256` (the hash of the event) or `new:delivery` (made for each
delivery). A path that goes into a text reads that text as JSON (SNS wraps SES so). A *template* composes several:
`{RecordType}|{MessageID}`; `{a|b}` takes the first that is there. An expression is one template or a list of them, of
which the first whose parts are all there counts.

Of a key that stands twice in one JSON object the last counts, as everywhere in Python, JavaScript and PostgreSQL; what
`verify` reads before the signature is checked is read by the same rule, so the two cannot be told different things.
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

MOST_BYTES = 255
"""The longest text that is indexed. A longer one is kept by its hash; the body still holds it."""


CONTENT, NEW = b":content", b":new"
"""Where `content:sha256` and `new:delivery` stand beside the headers: no header has a name that begins so."""
_MADE = {"content:sha256": CONTENT, "new:delivery": NEW}


class NotReadable(ValueError):
    """The bytes are not what they claim to be."""


class TooDeep(ValueError):
    """The body is nested beyond what any parser here follows; it is kept, but nothing is read out of it."""


# -- bodies ---------------------------------------------------------------------------------------------------------


def parse(body: bytes, *, form: bool = False) -> Any:
    """The body as plain data. Raises NotReadable or TooDeep, and nothing else, whatever arrives."""
    return _parse_form(body) if form else _parse_json(body)


def _parse_json(body: bytes | str) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise TooDeep("nested too deep") from None
    except (msgspec.MsgspecError, UnicodeError):
        return _parse_odd_json(body)


def _parse_odd_json(body: bytes | str) -> Any:
    """JSON that is well-formed by its grammar and yet too much for msgspec: lone surrogates, huge numbers."""
    try:
        text = body.decode("utf-8") if isinstance(body, bytes) else body
        return json.loads(text, parse_int=_integer, parse_constant=_refuse)
    except RecursionError:
        raise TooDeep("nested too deep") from None
    except ValueError as error:
        raise NotReadable(f"not JSON: {type(error).__name__}") from None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= 4000 else digits


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _parse_form(body: bytes) -> dict[str, str]:
    """A form's fields; of a repeated one the last. A field that holds a JSON object is read by a path into it."""
    try:
        fields = read_fields(body)
    except ValueError as error:
        raise NotReadable(f"not a form: {type(error).__name__}") from None
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields}


# A text without an end is one token to the end: were it none, every quote in it would be tried as a new beginning.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{},]', re.DOTALL)


def split(body: bytes, path: str) -> list[bytes]:
    """The exact bytes of each element of the array at `path` ("*" is the body itself).

    Raises NotReadable when there is no array there. An element that is itself broken is still an
    element: it becomes its own failed receipt and takes no neighbour with it.
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
    """The same split by counting brackets, for arrays with an element that no parser takes."""
    text = raw.strip(b" \t\r\n")
    if not (text.startswith(b"[") and text.endswith(b"]")):
        raise NotReadable("not an array")
    parts, depth, start = [], 0, 1
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b"[", b"{"):
            depth += 1
        elif mark in (b"]", b"}"):
            depth -= 1
            if depth == 0 and token.end() != len(text):
                raise NotReadable("not one array")
        elif depth == 1 and mark == b",":
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
    """What stands at a path, or `default`. A text on the way is read as JSON."""
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
    """A finder for an expression. Raises ValueError, with the reason, for one that is not well-formed.

    What `names` something is a text or a whole number: neither `true` nor 1.5 does. A time may be any number.
    """
    finders = [_compile_template(template, names) for template in templates_of(expression)]
    if not finders:
        raise ValueError("an expression is empty")
    if len(finders) == 1:
        return finders[0]

    def first(body: Any, headers: Headers) -> str | None:
        for find in finders:
            found = find(body, headers)
            if found is not None:
                return found
        return None

    return first


def compile_key(expression: str | Sequence[str]) -> Find:
    """The same for an id, of which two must not become one: `{a}-{b}` would join x-y, z and x, y-z to the same key."""
    for template in templates_of(expression):
        if template.startswith("literal:") or ("{" in template and not _PLACEHOLDER.search(template)):
            raise ValueError(f"{template!r} would be the id of every event: name where the id is")
        between = _PLACEHOLDER.split(template)[2:-1:2]
        if any("|" not in text for text in between):
            raise ValueError(f"{template!r} composes an id: put | between its parts")
    return compile_expression(expression)


def headers_of(expression: str | Sequence[str]) -> set[bytes]:
    """The names of the headers that an expression may read."""
    names = re.findall(r"(?:header|token):([^{}|\n]+)", "\n".join(templates_of(expression)))
    return {name.strip().lower().encode("latin-1") for name in names}


def made_for(expression: str | Sequence[str]) -> set[bytes]:
    """Which of the facts that no sender gives an expression may read."""
    text = "\n".join(templates_of(expression))
    return {key for name, key in _MADE.items() if name in text}


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
        raise ValueError(f"{template!r} has a brace without its partner")
    lone = len(pieces) == 3 and not pieces[0] and not pieces[2]
    finders = [_compile_choice(piece, names and lone) if i % 2 else piece for i, piece in enumerate(pieces)]
    return finders[1] if lone else _compose(finders)  # type: ignore[return-value]  # odd pieces are finders


def _compose(pieces: Sequence[str | Find]) -> Find:
    """Join what is found; `%` and `|` in a value are escaped, so that two facts cannot compose to one key."""

    def composed(body: Any, headers: Headers) -> str | None:
        parts = []
        for piece in pieces:
            if isinstance(piece, str):
                parts.append(piece)
                continue
            found = piece(body, headers)
            if found is None:
                return None
            parts.append(found.replace("%", "%25").replace("|", "%7C"))
        return "".join(parts)

    return composed


def _compile_choice(choice: str, names: bool) -> Find:
    finders = [_compile_locator(locator, names) for locator in choice.split("|")]
    if len(finders) == 1:
        return finders[0]
    return lambda body, headers: next((found for find in finders if (found := find(body, headers)) is not None), None)


def _compile_locator(locator: str, names: bool) -> Find:
    name = locator.strip()
    if not name:
        raise ValueError("a locator is empty")
    if name.startswith("header:") or name in _MADE:
        key = _MADE.get(name) or name[len("header:") :].strip().lower().encode("latin-1")
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
        for step in steps:  # nearly always a dict in a dict; `look_up` knows the rest
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
    """Whether every database keeps a text as it is: PostgreSQL has neither NULs nor lone surrogates."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def index_text(text: str | None) -> str | None:
    """A text as it may stand in an index: at most 255 bytes, no NUL, no lone surrogate; else its hash."""
    if text is None or (text.isascii() and len(text) <= MOST_BYTES and "\x00" not in text):
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > MOST_BYTES or not is_storable(text):
        return "sha256:" + hashlib.sha256(encoded).hexdigest()
    return text


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(?:[.,](\d{1,9})\d*)?\s*(Z|z|[+-]\d{2}:?\d{2})?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,14}(?:\.\d{1,9})?", re.ASCII)


def parse_time(text: str | None) -> datetime | None:
    """A moment out of what senders write: Unix seconds or milliseconds, ISO 8601 with any fraction and offset.

    None for what is none of these; a time that cannot be read is not worth an event.
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
    """SHA-256 by which "same id, other body" is told; without the fields that change from attempt to attempt."""
    if volatile and isinstance(parsed, dict):
        try:
            body = msgspec.json.encode(_without(parsed, volatile), order="sorted")
        except (ValueError, OverflowError, RecursionError):
            pass  # what JSON can hold and msgspec cannot write: then the bytes are compared as they came
    return hashlib.sha256(body).digest()


def _without(parsed: dict[str, Any], volatile: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    kept = dict(parsed)
    for first, *rest in volatile:
        inner = kept.get(first)
        if not rest:
            kept.pop(first, None)
        elif isinstance(inner, dict):
            kept[first] = _without(inner, [tuple(rest)])
    return kept
