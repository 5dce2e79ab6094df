"""Renders payloads for the pages: formatted, escaped and limited in length. Also renders the commands to copy."""

import re
import shlex

import msgspec
from markupsafe import Markup, escape

from oncehook.model.receipt import Receipt, StoredPayload

MAX_LENGTH = 128 * 1024
"""Maximum characters of a body on a page. The download has the whole body."""

MAX_INDENT = 40
"""Deeper levels get no further indentation."""

MAX_INLINE = 4096
"""Longer bodies are not part of the curl command: it reads the downloaded file."""

_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=\s*:))|(?P<text>"(?:[^"\\]|\\.)*")|(?P<open>[\[{])|(?P<close>[\]}])'
    r"|(?P<mark>[,:])|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)",
    re.DOTALL,
)
_HIDDEN = re.compile(
    r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Replace hidden and direction-changing characters with their escape sequences."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def pretty(body: bytes) -> tuple[Markup, bool]:
    """Return a body as HTML, and whether it was cut. Numbers stay as the sender wrote them."""
    text = body.decode("utf-8", "replace")
    if is_json(body):
        return _format_json(text)
    return escape(visible(text[:MAX_LENGTH])), len(text) > MAX_LENGTH


def is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _format_json(text: str) -> tuple[Markup, bool]:
    """Format JSON with one element per line. It stops at MAX_LENGTH: indentation can make a small body very long."""
    parts: list[str] = []
    length = depth = 0
    just_opened = False
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "", match[0]
        if kind == "close":
            depth -= 1
        broken = (just_opened and kind != "close") or (kind == "close" and not just_opened)
        parts.append(_break(depth) if broken else "")
        if kind in ("key", "text", "number", "word"):
            part = visible(part[:MAX_LENGTH])
            parts.append(Markup('<span class="json-{}">{}</span>').format(kind, part))
        else:
            parts.append(part + (" " if part == ":" else _break(depth) if part == "," else ""))
        just_opened = kind == "open"
        depth += just_opened
        length += len(parts[-1]) + len(parts[-2])
        if length > MAX_LENGTH:
            return Markup("").join(map(_safe, parts)), True
    return Markup("").join(map(_safe, parts)), False


def _break(depth: int) -> str:
    return "\n" + "  " * min(depth, MAX_INDENT)


def _safe(part: str) -> Markup:
    return part if isinstance(part, Markup) else escape(part)


# -- commands to copy -----------------------------------------------------------------------------------------------


def as_curl(receipt: Receipt, payload: StoredPayload, base: str) -> str:
    """The delivery as a curl command. Signatures are not stored, so a source that verifies rejects it."""
    lines = [f"curl -i {shlex.quote(f'{base}/{receipt.source}')}"]
    for name, value in payload.headers.items():
        if (name + value).isprintable():
            lines.append(f"  -H {shlex.quote(f'{name}: {value}')}")
    lines.append(f"  --data-binary {_data(receipt, payload.body)}")
    return " \\\n".join(lines)


def _data(receipt: Receipt, body: bytes) -> str:
    """Short plain text inline; any other body from the downloaded file."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(text) <= MAX_INLINE and text.replace("\n", "").isprintable() and not text.startswith("@"):
        return shlex.quote(text)
    return f"@event-{receipt.receipt}.txt"


def as_send(receipt: Receipt, base: str) -> str:
    """A command that sends a new, signed event of the same type."""
    type_ = receipt.type if receipt.type and receipt.type.isprintable() else "TYPE"
    type_ = "TYPE" if type_.startswith("-") else type_  # a type from a sender must not become an option
    to = f"{base}/{receipt.source}"
    return f"oncehook send {shlex.quote(receipt.source)} {shlex.quote(type_)} --to {shlex.quote(to)}"


def shorten(value: object, length: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
