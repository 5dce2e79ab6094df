"""Forms (`application/x-www-form-urlencoded`), decoded before anything in them is trusted.

A form of some megabytes may be nothing but escapes, and Python's own decoder takes a step of the interpreter for each.
Quoted-printable has the same escapes with another sign (`=41` for `%41`), and its decoder is written in C.
"""

import binascii

CONTENT_TYPE = "application/x-www-form-urlencoded"

MOST_FIELDS = 1000
"""No sender's event has more fields than this."""

MOST_PLAIN = 1000
"""Senders escape `=` and line breaks in a value. So many may stand there unescaped; each is escaped here first."""

_ALSO_READ = ((b"=", b"%3D"), (b"\r", b"%0D"), (b"\n", b"%0A"))  # signs that quoted-printable has a use for

Field = tuple[bytes, bytes]


def read_fields(body: bytes) -> list[Field]:
    """Name and value of each field, in their order. Raises ValueError for a body that is not a well-formed form."""
    if not body:
        return []
    if body.count(b"&") >= MOST_FIELDS:
        raise ValueError(f"more than {MOST_FIELDS} fields")
    body.decode("utf-8")
    fields = []
    for part in body.split(b"&"):
        name, equals, value = part.partition(b"=")
        if not equals:
            raise ValueError("a field without a value")
        fields.append((unescape(name), unescape(value)))
    return fields


def unescape(text: bytes) -> bytes:
    """The text with `+` and escapes decoded. Raises ValueError for a `%` that begins no escape."""
    if b"+" in text:
        text = text.replace(b"+", b" ")
    if b"%" not in text:
        return text
    for plain, escape in _ALSO_READ:
        if text.count(plain) > MOST_PLAIN:
            raise ValueError(f"more than {MOST_PLAIN} signs that a form escapes")
        text = text.replace(plain, escape)
    decoded = binascii.a2b_qp(text.replace(b"%", b"="))
    if len(decoded) != len(text) - 2 * text.count(b"%"):
        raise ValueError("an escape that is not two hexadecimal digits")
    return decoded


def canonical(fields: list[Field]) -> bytes:
    """The fields as Twilio and Mandrill sign them: name and value, sorted by name; each value of a name once."""
    return b"".join(name + value for name, value in sorted(set(fields)))
