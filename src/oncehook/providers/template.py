"""Fills the template of a signature: builds the signed message from the parts of an unverified request.

A template is literal text with `{body}`, `{timestamp}`, `{method}`, `{url}`, `{form}`, `{header:NAME}` and
`{body:PATH}`. Nearly every provider signs the body alone, or the body after a timestamp. These two have dedicated fast
functions, because every event passes through them.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from oncehook.model.delivery import Delivery
from oncehook.providers.expressions import Headers
from oncehook.providers.form import Field, canonical, read_fields

SMALL = 16 * 1024
"""In a body of up to SMALL bytes, each object is decoded once. A larger body is searched again for each field."""

Paths = tuple[tuple[str, ...], ...]
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


def compile_paths(paths: str) -> Paths:
    """Split `a.b|c` into alternative paths; the first that is present is used.

    Raises ValueError for a name that JSON would escape.
    """
    compiled = tuple(tuple(path.split(".")) for path in paths.split("|"))
    for name in chain.from_iterable(compiled):
        _reader((name,))
    return compiled


class Body:
    """An unverified body. It reads single fields and skips the rest without building objects.

    A hostile body therefore costs little: a millisecond or two for each megabyte and field. A field that is absent, or
    neither a string nor a whole number, is None.
    """

    __slots__ = ("_canonical", "_delivery", "_fields", "_sends_form", "_tables", "_values")

    def __init__(self, delivery: Delivery, sends_form: Callable[[Headers], bool]) -> None:
        self._delivery = delivery
        self._sends_form = sends_form
        self._fields: list[Field] | None = None
        self._canonical: bytes | None = None
        self._tables: dict[tuple[str, ...], dict[str, msgspec.Raw]] = {}  # decoded objects of a small body
        self._values: dict[tuple[str, ...], msgspec.Raw | None] = {}  # fields of a large body

    def at(self, paths: Paths) -> bytes | None:
        """The text at the first of several paths that is present."""
        find = self._in_form if self.is_form() else self._in_json
        for steps in paths:
            text = find(steps)
            if text is not None:
                return text
        return None

    def is_form(self) -> bool:
        return self._sends_form(self._delivery.headers)

    def is_absent(self, steps: tuple[str, ...]) -> bool:
        """Whether a JSON body has nothing, or null, at a path. A value that cannot be read is present."""
        parent = steps[:-1]
        if parent and self.is_absent(parent):
            return True
        try:
            value = _reader(steps[-1:])(self._value(parent) or b"").field_0
        except _UNREADABLE:
            return False
        return value is UNSET or bytes(value) == b"null"

    def form(self) -> bytes | None:
        """The fields of a form as Twilio and Mandrill sign them. None if the body is empty or not a form."""
        if not self.is_form():
            return None
        if self._canonical is None:
            self._canonical = canonical(self._form_fields())
        return self._canonical or None

    def raw(self, steps: tuple[str, ...]) -> bytes | None:
        """The exact bytes at a path of a JSON body, without parsing them. None if there is nothing."""
        value = self._value(steps)
        return None if value is None else bytes(value)

    def texts(self, names: tuple[str, ...]) -> dict[str, str] | None:
        """The top-level strings of these names that are present. None if one of them is another kind of value."""
        try:
            values = astuple(_reader(names)(self._delivery.body))
            texts = {
                name: _optional_text(value) for name, value in zip(names, values, strict=True) if value is not UNSET
            }
        except _UNREADABLE:
            return None
        return {name: text for name, text in texts.items() if text is not None}

    def _value(self, steps: tuple[str, ...]) -> "Value | None":
        if not steps:
            return self._delivery.body
        if len(self._delivery.body) <= SMALL:
            return self._table(steps[:-1]).get(steps[-1])
        if steps not in self._values:
            self._values[steps] = read_field(self._value(steps[:-1]), steps[-1])
        return self._values[steps]

    def _table(self, steps: tuple[str, ...]) -> dict[str, msgspec.Raw]:
        """The object at a path of a small body. Empty if there is none."""
        table = self._tables.get(steps)
        if table is None:
            value = self._value(steps)
            try:
                table = {} if value is None else _decode_table(value)
            except _UNREADABLE:
                table = {}
            self._tables[steps] = table
        return table

    def _in_json(self, steps: tuple[str, ...]) -> bytes | None:
        return _as_text(self._value(steps))

    def _in_form(self, steps: tuple[str, ...]) -> bytes | None:
        first, *inner = steps
        name = first.encode()
        fields = reversed(self._form_fields())
        value: Value | None = next((value for field, value in fields if field == name), None)
        for step in inner:  # a field may hold JSON
            value = read_field(value, step)
        return _as_text(value) if inner else None if value is None else bytes(value)

    def _form_fields(self) -> list[Field]:
        if self._fields is None:
            try:
                self._fields = read_fields(self._delivery.body)
            except ValueError:
                self._fields = []
        return self._fields


Value = bytes | msgspec.Raw


def read_field(table: Value | None, name: str) -> msgspec.Raw | None:
    """The exact bytes of one field of a JSON object. None if it is missing, or `table` is not an object."""
    try:
        value = None if table is None else _reader((name,))(table).field_0
    except _UNREADABLE:
        return None
    return None if value is UNSET else value


def _as_text(value: Value | None) -> bytes | None:
    """A JSON string or whole number as the bytes that a signature covers."""
    try:
        scalar: str | int | None = None if value is None else _scalar(value)
    except _UNREADABLE:
        return None
    return None if scalar is None else str(scalar).encode("utf-8", "surrogatepass")


@cache  # names come from definitions, never from a request
def _reader(names: tuple[str, ...]) -> Callable[[Value], Any]:
    """A decoder of the raw values of these names in an object. It skips other fields without building objects."""
    fields = [(f"field_{i}", msgspec.Raw | UnsetType, UNSET) for i in range(len(names))]
    renamed = {f"field_{i}": name for i, name in enumerate(names)}
    return msgspec.json.Decoder(msgspec.defstruct("Table", fields, rename=renamed)).decode


_decode_table = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_scalar = msgspec.json.Decoder(str | int | None).decode
_optional_text = msgspec.json.Decoder(str | None).decode


# -- templates ------------------------------------------------------------------------------------------------------

Fill = Callable[[Delivery, Body, bytes | None], bytes | None]
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_WORDS = ("body", "timestamp", "method", "url", "form")


class Template:
    """A compiled template. `fill` returns the signed message of a request, or None if a part of it is missing."""

    def __init__(self, text: str, url: bytes = b"") -> None:
        """`url` is the source's public address. Raises ValueError for an unknown placeholder."""
        pieces = _PLACEHOLDER.split(text)
        if any("{" in piece or "}" in piece for piece in pieces):
            raise ValueError(f"{text!r} has an unmatched brace")
        self.names = pieces[1::2]
        for name in self.names:
            if name not in _WORDS and not name.startswith(("header:", "body:")):
                raise ValueError(f"{{{name}}} is not a known placeholder: use {{body}}, {{timestamp}}, {{method}} …")
        self.headers = {_header(name) for name in self.names if name.startswith("header:")}
        literals = [piece.encode() for piece in pieces[::2]]
        self.fill: Fill
        if self.names == ["body"] and literals == [b"", b""]:
            self.fill = _whole_body
        elif self.names == ["timestamp", "body"] and not literals[2]:
            self.fill = _after_timestamp(literals[0], literals[1])
        else:
            self.fill = _compose([_part(name, url) for name in self.names], literals)


def _whole_body(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes:
    return delivery.body


def _after_timestamp(before: bytes, between: bytes) -> Fill:
    def fill(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        return None if timestamp is None else b"".join((before, timestamp, between, delivery.body))

    return fill


def _compose(parts: Sequence[Fill], literals: Sequence[bytes]) -> Fill:
    first, *after = literals

    def fill(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        message = [first]
        for part, literal in zip(parts, after, strict=True):
            content = part(delivery, body, timestamp)
            if content is None:
                return None
            message += (content, literal)
        return b"".join(message)

    return fill


def _part(name: str, url: bytes) -> Fill:
    if name == "body":
        return _whole_body
    if name == "timestamp":
        return lambda delivery, body, timestamp: timestamp
    if name == "method":
        return lambda delivery, body, timestamp: delivery.method.encode()
    if name.startswith("header:"):
        header = _header(name)
        return lambda delivery, body, timestamp: delivery.headers.get(header)
    if name == "url":
        return lambda delivery, body, timestamp: url + b"?" + delivery.query if delivery.query else url
    if name == "form":
        return lambda delivery, body, timestamp: body.form()
    path = name.removeprefix("body:")
    paths = compile_paths(path.removesuffix("?"))
    if not path.endswith("?"):
        return lambda delivery, body, timestamp: body.at(paths)

    def optional(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        text = body.at(paths)
        return b"" if text is None and all(map(body.is_absent, paths)) else text

    return optional


def _header(name: str) -> bytes:
    return name.removeprefix("header:").strip().lower().encode()
