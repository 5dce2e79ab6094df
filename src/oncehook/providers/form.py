"""Decodes forms (`application/x-www-form-urlencoded`) of unverified senders at low cost.

A form of some megabytes may consist of escapes only, and Python's own decoder runs an interpreted step for each.
Quoted-printable has the same escapes with another character (`=41` for `%41`), and its decoder is written in C.
"""

import binascii

CONTENT_TYPE = "application/x-www-form-urlencoded"

MAX_FIELDS = 1000
"""No event of any sender has more fields than this."""

MAX_UNESCAPED = 1000
"""Senders escape `=` and line breaks in a value. Up to this many may be unescaped; `unescape` escapes them first."""

_QUOTED_PRINTABLE = ((b"=", b"%3D"), (b"\r", b"%0D"), (b"\n", b"%0A"))  # characters with a meaning in that encoding

Field = tuple[bytes, bytes]


def read_fields(body: bytes) -> list[Field]:
    """Name and value of each field, in order. Raises ValueError for a body that is not a well-formed form."""
    if not body:
        return []
    if body.count(b"&") >= MAX_FIELDS:
        raise ValueError(f"more than {MAX_FIELDS} fields")
    body.decode("utf-8")
    fields = []
    for part in body.split(b"&"):
        name, equals, value = part.partition(b"=")
        if not equals:
            raise ValueError("a field without a value")
        fields.append((unescape(name), unescape(value)))
    return fields


def unescape(text: bytes) -> bytes:
    """Decode `+` and escapes. Raises ValueError for a `%` without two hexadecimal digits."""
    if b"+" in text:
        text = text.replace(b"+", b" ")
    if b"%" not in text:
        return text
    for plain, escape in _QUOTED_PRINTABLE:
        if text.count(plain) > MAX_UNESCAPED:
            raise ValueError(f"more than {MAX_UNESCAPED} unescaped characters")
        text = text.replace(plain, escape)
    decoded = binascii.a2b_qp(text.replace(b"%", b"="))
    if len(decoded) != len(text) - 2 * text.count(b"%"):
        raise ValueError("an escape that is not two hexadecimal digits")
    return decoded


def canonical(fields: list[Field]) -> bytes:
    """The fields as Twilio and Mandrill sign them: name and value, sorted by name. A repeated field counts once."""
    return b"".join(name + value for name, value in sorted(set(fields)))
