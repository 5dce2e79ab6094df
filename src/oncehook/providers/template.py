"""What a signature covers: a template of the request, filled from its bytes before any of them is trusted.

`{body}`, `{timestamp}`, `{method}`, `{url}`, `{form}`, `{header:NAME}` and `{body:PATH}` stand in literal text. The two
shapes that nearly every provider uses, the body alone and the body after a timestamp, have a filler of their own: every
event passes here.
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
"""In a body of up to so many bytes, objects are decoded once. A larger one is searched again for each field."""

Paths = tuple[tuple[str, ...], ...]
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


def compile_paths(paths: str) -> Paths:
    """`a.b|c` as steps: the first path that is there counts. Raises ValueError for a name that JSON would escape."""
    compiled = tuple(tuple(path.split(".")) for path in paths.split("|"))
    for name in chain.from_iterable(compiled):
        _reader((name,))
    return compiled


class Body:
    """The body before it is trusted: single texts are read out of it, and the rest is skipped, not built.

    So a hostile body costs a sender more than it costs us: a millisecond or two for each megabyte and field. A field
    that is absent, or that is neither a text nor a whole number, is None.
    """

    __slots__ = ("_canonical", "_delivery", "_fields", "_found", "_sends_form", "_tables")

    def __init__(self, delivery: Delivery, sends_form: Callable[[Headers], bool]) -> None:
        self._delivery = delivery
        self._sends_form = sends_form
        self._fields: list[Field] | None = None
        self._canonical: bytes | None = None
        self._tables: dict[tuple[str, ...], dict[str, msgspec.Raw]] = {}  # of a small body
        self._found: dict[tuple[str, ...], msgspec.Raw | None] = {}  # in a large one

    def at(self, paths: Paths) -> bytes | None:
        """The text at the first of several paths that is there."""
        find = self._in_form if self.is_form() else self._in_json
        for steps in paths:
            found = find(steps)
            if found is not None:
                return found
        return None

    def is_form(self) -> bool:
        return self._sends_form(self._delivery.headers)

    def is_absent(self, steps: tuple[str, ...]) -> bool:
        """Whether a JSON body has nothing, or null, at a path. A value that cannot be read is there all the same."""
        around = steps[:-1]
        if around and self.is_absent(around):
            return True
        try:
            found = _reader(steps[-1:])(self._value(around) or b"").field_0
        except _UNREADABLE:
            return False
        return found is UNSET or bytes(found) == b"null"

    def form(self) -> bytes | None:
        """A form's fields as Twilio and Mandrill sign them; None for what is no form, or an empty one."""
        if not self.is_form():
            return None
        if self._canonical is None:
            self._canonical = canonical(self._form_fields())
        return self._canonical or None

    def raw(self, steps: tuple[str, ...]) -> bytes | None:
        """The exact bytes at a path of a JSON body, not read any further; None if there is nothing."""
        found = self._value(steps)
        return None if found is None else bytes(found)

    def texts(self, names: tuple[str, ...]) -> dict[str, str] | None:
        """The top-level texts of these names, as far as they are there; None if one of them is something else."""
        try:
            values = astuple(_reader(names)(self._delivery.body))
            found = {
                name: _optional_text(value) for name, value in zip(names, values, strict=True) if value is not UNSET
            }
        except _UNREADABLE:
            return None
        return {name: text for name, text in found.items() if text is not None}

    def _value(self, steps: tuple[str, ...]) -> "Value | None":
        if not steps:
            return self._delivery.body
        if len(self._delivery.body) <= SMALL:
            return self._table(steps[:-1]).get(steps[-1])
        if steps not in self._found:
            self._found[steps] = read_field(self._value(steps[:-1]), steps[-1])
        return self._found[steps]

    def _table(self, steps: tuple[str, ...]) -> dict[str, msgspec.Raw]:
        """A whole object of a small body; empty if there is none."""
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
        found: Value | None = next((value for field, value in fields if field == name), None)
        for step in inner:  # a field may hold JSON
            found = read_field(found, step)
        return _as_text(found) if inner else None if found is None else bytes(found)

    def _form_fields(self) -> list[Field]:
        if self._fields is None:
            try:
                self._fields = read_fields(self._delivery.body)
            except ValueError:
                self._fields = []
        return self._fields


Value = bytes | msgspec.Raw


def read_field(table: Value | None, name: str) -> msgspec.Raw | None:
    """The exact bytes of one field of a JSON object; None if it is not there, or this is no object."""
    try:
        found = None if table is None else _reader((name,))(table).field_0
    except _UNREADABLE:
        return None
    return None if found is UNSET else found


def _as_text(value: Value | None) -> bytes | None:
    """A text or a whole number of JSON as the bytes that are signed of it."""
    try:
        read: str | int | None = None if value is None else _scalar(value)
    except _UNREADABLE:
        return None
    return None if read is None else str(read).encode("utf-8", "surrogatepass")


@cache  # names come from definitions, never from a request
def _reader(names: tuple[str, ...]) -> Callable[[Value], Any]:
    """Decodes an object into the raw values of these names. Other fields are skipped, and nothing is built of them."""
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
    """A compiled template. `fill` gives the signed message of a request, or None if a part of it is missing."""

    def __init__(self, text: str, url: bytes = b"") -> None:
        """`url` is the source's public address. Raises ValueError for a placeholder that is not one of the format's."""
        pieces = _PLACEHOLDER.split(text)
        if any("{" in piece or "}" in piece for piece in pieces):
            raise ValueError(f"{text!r} has a brace without its partner")
        self.names = pieces[1::2]
        for name in self.names:
            if name not in _WORDS and not name.startswith(("header:", "body:")):
                raise ValueError(f"{{{name}}} is not a part of a request: use {{body}}, {{timestamp}}, {{method}} …")
        self.headers = {_header(name) for name in self.names if name.startswith("header:")}
        literals = [piece.encode() for piece in pieces[::2]]
        self.fill: Fill
        if self.names == ["body"] and literals == [b"", b""]:
            self.fill = _whole_body
        elif self.names == ["timestamp", "body"] and not literals[2]:
            self.fill = _after_timestamp(literals[0], literals[1])
        else:
            self.fill = _composed([_part(name, url) for name in self.names], literals)


def _whole_body(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes:
    return delivery.body


def _after_timestamp(before: bytes, between: bytes) -> Fill:
    def fill(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        return None if timestamp is None else b"".join((before, timestamp, between, delivery.body))

    return fill


def _composed(parts: Sequence[Fill], literals: Sequence[bytes]) -> Fill:
    first, *after = literals

    def fill(delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        message = [first]
        for part, literal in zip(parts, after, strict=True):
            found = part(delivery, body, timestamp)
            if found is None:
                return None
            message += (found, literal)
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
        found = body.at(paths)
        return b"" if found is None and all(map(body.is_absent, paths)) else found

    return optional


def _header(name: str) -> bytes:
    return name.removeprefix("header:").strip().lower().encode()
