"""What a signature covers: a template of the request, filled from its bytes before any of them is trusted.

`{body}`, `{timestamp}`, `{method}`, `{url}`, `{form}`, `{header:NAME}` and `{body:PATH}` stand in literal text. The two
shapes that nearly every provider uses, the body alone and the body after a timestamp, have a filler of their own: every
event passes here.
"""

import re
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl

import msgspec

from oncehook.extract import Headers, NotReadable, look_up, parse
from oncehook.receipt import Delivery

MOST_FIELDS = 1000
"""More fields than this in one form are nobody's event."""

Paths = tuple[tuple[str, ...], ...]
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


def compile_paths(paths: str) -> Paths:
    """`a.b|c` as steps: the first path that is there counts."""
    return tuple(tuple(path.split(".")) for path in paths.split("|"))


class Body:
    """The body before it is trusted: single texts are read out of it, and the rest is skipped, not built.

    So a hostile body costs a sender more than it costs us. Whatever is not there, or is no text and no whole
    number, is None.
    """

    __slots__ = ("_delivery", "_form", "_sends_form", "_tables")

    def __init__(self, delivery: Delivery, sends_form: Callable[[Headers], bool]) -> None:
        self._delivery = delivery
        self._sends_form = sends_form
        self._form: dict[str, str] | None = None
        self._tables: dict[tuple[str, ...], dict[str, msgspec.Raw]] | None = None

    def at(self, paths: Paths) -> bytes | None:
        """The text at the first of several paths that is there."""
        find = self._in_form if self._sends_form(self._delivery.headers) else self._in_json
        for steps in paths:
            found = find(steps)
            if found is not None:
                return str(found).encode("utf-8", "surrogatepass")
        return None

    def form(self) -> bytes | None:
        """A form's fields as Twilio and Mandrill sign them; None for what is no form, or an empty one."""
        if not self._sends_form(self._delivery.headers):
            return None
        return canonical_form(self._delivery.body)

    def raw(self, steps: tuple[str, ...]) -> bytes | None:
        """The exact bytes at a path of a JSON body, not read any further."""
        try:
            return bytes(self._table(steps[:-1])[steps[-1]])
        except (*_UNREADABLE, KeyError):
            return None

    def texts(self, names: Sequence[str]) -> dict[str, str] | None:
        """The top-level texts of these names, as far as they are there; None if one of them is something else."""
        try:
            table = self._table(())
            found = {name: _optional_text(table[name]) for name in names if name in table}
        except _UNREADABLE:
            return None
        return {name: text for name, text in found.items() if text is not None}

    def _in_json(self, steps: tuple[str, ...]) -> str | int | None:
        try:
            found: str | int | None = _scalar(self._table(steps[:-1])[steps[-1]])
        except (*_UNREADABLE, KeyError):
            return None
        return found

    def _table(self, steps: tuple[str, ...]) -> dict[str, msgspec.Raw]:
        if self._tables is None:
            self._tables = {(): _decode_table(self._delivery.body)}
        table = self._tables.get(steps)
        if table is None:
            table = self._tables[steps] = _decode_table(self._table(steps[:-1])[steps[-1]])
        return table

    def _in_form(self, steps: tuple[str, ...]) -> str | None:
        if self._form is None:
            try:
                self._form = parse(self._delivery.body, form=True)
            except NotReadable:
                self._form = {}
        found = look_up(self._form, steps)
        return found if isinstance(found, str) else None


def canonical_form(body: bytes) -> bytes | None:
    """Name and value of each field, without anything between them, sorted by name; of one name each value once."""
    try:
        text = body.decode("utf-8")
        fields = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return None
    return "".join(name + value for name, value in sorted(set(fields))).encode("utf-8", "surrogatepass") or None


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
    if path.endswith("?"):  # what is not there counts as empty
        return lambda delivery, body, timestamp: body.at(paths) or b""
    return lambda delivery, body, timestamp: body.at(paths)


def _header(name: str) -> bytes:
    return name.removeprefix("header:").strip().lower().encode()
