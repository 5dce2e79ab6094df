"""How what a sender wrote is shown: pretty, safe, and never longer than a page should be."""

import re
import shlex

import msgspec
from markupsafe import Markup, escape

from oncehook.model.receipt import Receipt, StoredPayload

LONGEST = 128 * 1024
"""Characters of a body on the page; the download has all of it."""

DEEPEST = 40
"""Levels that are still indented."""

PASTED = 4096

_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=\s*:))|(?P<text>"(?:[^"\\]|\\.)*")|(?P<open>[\[{])|(?P<close>[\]}])'
    r"|(?P<mark>[,:])|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)",
    re.DOTALL,
)
_HIDDEN = re.compile(
    r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with what would hide, or turn the line around, written out."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def pretty(body: bytes) -> tuple[Markup, bool]:
    """A body as marked-up text, and whether it is cut. Numbers stand as the sender wrote them."""
    text = body.decode("utf-8", "replace")
    if is_json(body):
        return _laid_out(text)
    return escape(visible(text[:LONGEST])), len(text) > LONGEST


def is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _laid_out(text: str) -> tuple[Markup, bool]:
    """JSON with a line an element. It stops when the page is full: a small body can be a very long page."""
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
            part = visible(part[:LONGEST])
            parts.append(Markup('<span class="json-{}">{}</span>').format(kind, part))
        else:
            parts.append(part + (" " if part == ":" else _break(depth) if part == "," else ""))
        just_opened = kind == "open"
        depth += just_opened
        length += len(parts[-1]) + len(parts[-2])
        if length > LONGEST:
            return Markup("").join(map(_safe, parts)), True
    return Markup("").join(map(_safe, parts)), False


def _break(depth: int) -> str:
    return "\n" + "  " * min(depth, DEEPEST)


def _safe(part: str) -> Markup:
    return part if isinstance(part, Markup) else escape(part)


# -- commands to copy -----------------------------------------------------------------------------------------------


def as_curl(receipt: Receipt, payload: StoredPayload, base: str) -> str:
    """What arrived, as a command. Its signature is not kept, so a door that verifies refuses it, as it should."""
    lines = [f"curl -i {shlex.quote(f'{base}/{receipt.source}')}"]
    for name, value in payload.headers.items():
        if (name + value).isprintable():
            lines.append(f"  -H {shlex.quote(f'{name}: {value}')}")
    lines.append(f"  --data-binary {_data(receipt, payload.body)}")
    return " \\\n".join(lines)


def _data(receipt: Receipt, body: bytes) -> str:
    """Short plain text in place, anything else from the downloaded file."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(text) <= PASTED and text.replace("\n", "").isprintable() and not text.startswith("@"):
        return shlex.quote(text)
    return f"@event-{receipt.receipt}.txt"


def as_send(receipt: Receipt, base: str) -> str:
    """A new event of the same kind, signed."""
    type_ = receipt.type if receipt.type and receipt.type.isprintable() else "TYPE"
    type_ = "TYPE" if type_.startswith("-") else type_  # a sender's word is no option
    to = f"{base}/{receipt.source}"
    return f"oncehook send {shlex.quote(receipt.source)} {shlex.quote(type_)} --to {shlex.quote(to)}"


def shortened(value: object, length: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
